"""Questions about training: how did it go, and what do the networks do?"""
