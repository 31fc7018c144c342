"""The endpoints of vectors and scores in a frontend."""

from extras.embeddings.cohere import CohereApi
from extras.embeddings.pooled_requests import PooledCalls
from extras.embeddings.rerank import RerankApi
from extras.embeddings.routes import pooling, ranking
from extras.embeddings.scores import Scorer
from extras.embeddings.tei import TeiApi
from extras.embeddings.vectors import VectorApi
from frontend.api.answers.conversation import Conversations
from frontend.extras import FrontendContext, FrontendPart


class EmbeddingsPart(FrontendPart):
    def __init__(self, context: FrontendContext):
        calls = PooledCalls(context)
        scorer = Scorer(calls, Conversations(context.service, context.model_format), context.link.config)
        self.endpoints = [
            *pooling(VectorApi(calls), CohereApi(calls)),
            *ranking(RerankApi(calls, scorer), TeiApi(calls, scorer)),
        ]


make_part = EmbeddingsPart
