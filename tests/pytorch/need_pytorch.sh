# To be sourced: sets `pytorch` to the words of CAIRN_PYTORCH, a command that runs Python with PyTorch 2.6 or newer. Without it, ends the
# test as skipped (exit code 77).
if [ -z "${CAIRN_PYTORCH:-}" ]; then
  echo "skipped: CAIRN_PYTORCH names no command that runs real PyTorch"
  exit 77
fi
eval "pytorch=($CAIRN_PYTORCH)"
