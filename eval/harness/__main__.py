"""lm-eval's own command line, which knows our model: --model splice --model_args pretrained=M,dtype=float32 --tasks ..."""

from lm_eval.__main__ import cli_evaluate

from splice.errors import SpliceError

if __name__ == "__main__":
    try:
        cli_evaluate()
    except SpliceError as error:
        raise SystemExit(str(error)) from None
