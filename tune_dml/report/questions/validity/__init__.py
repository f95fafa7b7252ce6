"""Questions about validity: what limits the answer, and can it be trusted?"""
