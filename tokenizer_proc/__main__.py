"""`python -m tokenizer_proc --run-dir DIR`"""

from tokenizer_proc.process import main

raise SystemExit(main())
