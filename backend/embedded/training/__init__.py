"""How the shipped draft is made: the target writes a corpus, its taps are stored, a head is trained and exported."""
