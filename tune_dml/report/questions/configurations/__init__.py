"""Questions about configurations: which is best, does it hold up, which knob matters?"""
