"""Questions about each knob: does it matter, where is its best value, does it agree with the paper?"""
