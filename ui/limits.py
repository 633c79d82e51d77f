"""What one visitor may ask for; the same for everybody from the first day."""

from __future__ import annotations

MAX_PROMPT_CHARACTERS = 16_000  # one message
MAX_SYSTEM_CHARACTERS = 4_000
MAX_REPLY_TOKENS = 4_096
MAX_TURNS = 50  # turns sent to the model; older ones are left out
MAX_TRIALS = 9  # of one comparison
MAX_RUNNING = 4  # replies written at the same time
MAX_WAITING = 32  # visitors in the queue behind them
