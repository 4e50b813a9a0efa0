# To be sourced: ends the test as skipped (exit code 77) unless CAIRN_PYTORCH names a command that runs Python with PyTorch 2.6 or newer.
if [ -z "${CAIRN_PYTORCH:-}" ]; then
  echo "skipped: CAIRN_PYTORCH names no command that runs real PyTorch"
  exit 77
fi
