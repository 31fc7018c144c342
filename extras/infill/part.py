"""`/infill` in a frontend: its entry in the route table."""

from extras.infill.endpoint import InfillApi, InfillBody
from extras.infill.reply import InfillEnd, InfillPiece
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint

EXAMPLE = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))\n", "n_predict": 16}


class InfillPart(FrontendPart):
    def __init__(self, context: FrontendContext):
        api = InfillApi(context)
        self.endpoints = [
            Endpoint(
                "/infill",
                api.create,
                "Fill in the text between a prefix and a suffix",
                InfillEnd,
                tag="generation",
                description="As in llama.cpp. A model without tokens for it (FIM) refuses the request.",
                body=InfillBody,
                events=(InfillPiece, InfillEnd),
                errors=(404,),
                examples={"code": EXAMPLE},
            )
        ]


make_part = InfillPart
