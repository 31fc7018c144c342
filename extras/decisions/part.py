"""The endpoint of decisions in a frontend."""

from extras.decisions.endpoint import Decision, DecisionApi, DecisionBody
from extras.embeddings.pooled_requests import PooledCalls
from frontend.api.answers.conversation import Conversations
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint

EXAMPLE = {
    "input": "My order arrived broken, and I want my money back.",
    "questions": [
        {"type": "predicate", "instructions": "The customer asks for a refund."},
        {"type": "choice", "instructions": "The topic.", "choices": [{"value": "damage"}, {"value": "delay"}]},
        {"type": "score", "instructions": "How angry is it?", "levels": [{"label": "calm"}, {"label": "furious"}]},
    ],
}


class DecisionsPart(FrontendPart):
    def __init__(self, context: FrontendContext):
        api = DecisionApi(PooledCalls(context), Conversations(context.service, context.model_format))
        self.endpoints = [
            Endpoint(
                "/v1/decisions",
                api.decide,
                "Answer questions about an input with probabilities",
                Decision,
                tag="decisions",
                body=DecisionBody,
                errors=(404, 504),
                examples={"one of each": EXAMPLE},
            )
        ]


make_part = DecisionsPart
