"""Questions about methods: which is better, what does it gain, does it beat the baseline?"""
