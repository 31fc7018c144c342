"""Vision towers: from the views of an image to the rows that replace the embeddings of its placeholders."""
