"""`python -m detokenizer_proc --run-dir DIR`"""

from detokenizer_proc.process import main

raise SystemExit(main())
