"""What a network is trained for and how it is judged: retrieval, face recognition, contrastive learning."""
