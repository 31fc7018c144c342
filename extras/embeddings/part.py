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
from frontend.http.field_names import UnknownFields


class EmbeddingsPart(FrontendPart):
    def __init__(self, context: FrontendContext):
        service, config = context.service, context.link.config
        unknown = UnknownFields(is_strict=config.http.strict_fields)
        calls = PooledCalls(service)
        scorer = Scorer(calls, Conversations(service, context.model_format), config)
        self.endpoints = [
            *pooling(VectorApi(service, calls, unknown), CohereApi(service, calls, unknown)),
            *ranking(RerankApi(service, calls, scorer, unknown), TeiApi(service, calls, scorer, unknown)),
        ]


make_part = EmbeddingsPart
