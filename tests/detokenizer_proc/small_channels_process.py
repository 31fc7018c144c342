"""The real detokenizer process with small channels."""

import messages.channels
from detokenizer_proc.process import main

if __name__ == "__main__":
    messages.channels.MAX_QUEUED_FRAMES = 500
    raise SystemExit(main())
