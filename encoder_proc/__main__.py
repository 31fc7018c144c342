"""`python -m encoder_proc --run-dir DIR`"""

from encoder_proc.process import main

raise SystemExit(main())
