"""SGLang on this machine: whether a pair fits, how it is launched, and a supervisor that leaves nothing behind."""
