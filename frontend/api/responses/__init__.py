"""`/v1/responses`: OpenAI's API of responses, which may be stored, continued and made in the background."""
