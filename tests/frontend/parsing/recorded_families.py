"""Answers in the formats of single families, as their models and the documentation of these write them."""

from tests.frontend.parsing.recorded import ODD, ODD_JSON, PARIS, Recorded

WEATHER = ("get_weather", {"city": "Paris", "days": 2})
NOW = ("now", {})

FAMILIES = [
    Recorded(
        "Gemma 4: thought, words and calls",
        *("gemma4", "gemma4"),
        "<|channel>thought\nThe user wants\nthe weather.\n<channel|>I look."
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>'
        "<|tool_response>",
        content="I look.",
        reasoning="The user wants\nthe weather.",
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "Gemma 4: values of every kind",
        *("gemma4", "none"),
        '<|tool_call>call:get_weather{a-b.c:-1.5e3,city:<|"|>{x:"}", [y:<|"|>,d:{e:[<|"|>f<|"|>,null],g:{}},exact:true}'
        "<tool_call|>",
        calls=(
            (
                "get_weather",
                {"a-b.c": -1500.0, "city": '{x:"}", [y:', "d": {"e": ["f", None], "g": {}}, "exact": True},
            ),
        ),
    ),
    Recorded(
        "Gemma 4: the thought is cut short, and closed once too often",
        *("gemma4", "gemma4"),
        "<|channel>thought<channel|>It is sunny.<channel|>",
        content="It is sunny.",
    ),
    Recorded(
        "Gemma 4: the prompt has closed the thought",
        *("gemma4", "gemma4"),
        "It is sunny.<turn|>",
        content="It is sunny.",
        prompt_end="<|turn>model\n<|channel>thought\n<channel|>",
    ),
    *(
        Recorded(f"Gemma 4: a slip, {slip}", "gemma4", "none", f"<|tool_call>call:now{slip}<tool_call|>", calls=(call,))
        for slip, call in (
            ('{a:<|"|>b}', ("now", {"a": "b"})),
            ('{a:b<|"|>,c:1}', ("now", {"a": "b", "c": 1})),
            ("{a:New York, USA,b:true}", ("now", {"a": "New York, USA", "b": True})),
            ('{a:<|"|>b, c,d:<|"|>e<|"|>}', ("now", {"a": "b, c", "d": "e"})),
            ('{"a":"b\\n","c":[x,<|"|>y<|"|>]}', ("now", {"a": "b\n", "c": ["x", "y"]})),
            ('{a:{b:<|"|>c}}', ("now", {"a": {"b": "c"}})),
            ('{<|"|>a<|"|>:12:30}', ("now", {"a": "12:30"})),
        )
    ),
    Recorded(
        "FunctionGemma",
        *("functiongemma", "none"),
        "<start_function_call>call:get_weather{city:<escape>São Paulo, {x}<escape>,days:2}<end_function_call>",
        calls=(("get_weather", {"city": "São Paulo, {x}", "days": 2}),),
    ),
    Recorded(
        "GLM-4.5: lines",
        *("glm45", "qwen3"),
        "\n<think>\nHm.</think>\nOne moment.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>  def f():\n"
        "    return a < b\n</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>places</arg_key>\n"
        '<arg_value>["a", "b"]</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>',
        content="One moment.",
        reasoning="Hm.",
        calls=(("get_weather", {"city": "  def f():\n    return a < b\n", "days": 2, "places": ["a", "b"]}), NOW),
    ),
    Recorded(
        "GLM-4.7: no lines",
        *("glm45", "qwen3"),
        "Hm.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>5</arg_value><arg_key>exact</arg_key>"
        "<arg_value>false</arg_value></tool_call><tool_call>now</tool_call>",
        reasoning="Hm.",
        calls=(("get_weather", {"city": "5", "exact": False}), NOW),
        prompt_end="<|assistant|><think>",
    ),
    Recorded(
        "Seed-OSS: Python's lists",
        *("seed_oss", "seed_oss"),
        "<seed:think>Hm.\n<seed:cot_budget_reflect>I have used 9 tokens.</seed:cot_budget_reflect></seed:think>\n"
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=places>['a', \"b's\"]"
        "</parameter>\n</function>\n</seed:tool_call>",
        reasoning="Hm.\n<seed:cot_budget_reflect>I have used 9 tokens.</seed:cot_budget_reflect>",
        calls=(("get_weather", {"city": "Paris", "places": ["a", "b's"]}),),
    ),
    Recorded(
        "MiniMax-M2: calls in a group",
        *("minimax_m2", "deepseek_r1"),
        'Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris'
        '</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        "</minimax:tool_call>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER, NOW),
        prompt_end="]~b]ai\n<think>\n",
    ),
    Recorded(
        "DeepSeek-V3.2",
        *("deepseek_v32", "qwen3"),
        'I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" '
        'string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        content="I look.",
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "MiniCPM5: a CDATA section",
        *("minicpm5", "qwen3"),
        '<function name="get_weather"><param name="city"><![CDATA[a\n</b> & c]]></param><param name="days">2</param>'
        '</function>\n<function name="now"></function>',
        calls=(("get_weather", {"city": "a\n</b> & c", "days": 2}), NOW),
    ),
    Recorded(
        "DeepSeek-R1: fences",
        *("deepseek_v3", "deepseek_r1"),
        "<think>Hm.</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        reasoning="Hm.",
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "DeepSeek-V3.1",
        *("deepseek_v3", "qwen3"),
        f"I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ODD_JSON}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        content="I look.",
        calls=(("get_weather", ODD), NOW),
        prompt_end="<｜Assistant｜></think>",
    ),
    Recorded(
        "Kimi-K2: names with numbers",
        *("kimi_k2", "none"),
        "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        f"{ODD_JSON}<|tool_call_end|><|tool_call_begin|>now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        content="I look.",
        calls=(("get_weather", ODD), NOW),
    ),
    Recorded(
        "Command R7B: a plan and actions",
        *("cohere_command3", "cohere_command3"),
        '<|START_THINKING|>I will look.<|END_THINKING|><|START_ACTION|>[\n    {"tool_call_id": "0", '
        f'"tool_name": "get_weather", "parameters": {ODD_JSON}}},\n    {{"tool_call_id": "1", '
        '"tool_name": "now", "parameters": {}}\n]<|END_ACTION|>',
        reasoning="I will look.",
        calls=(("get_weather", ODD), NOW),
    ),
    Recorded(
        "Command R7B: a response",
        *("cohere_command3", "cohere_command3"),
        "<|START_RESPONSE|>It is\nsunny.<|END_RESPONSE|>",
        content="It is\nsunny.",
        prompt_end="<|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>",
    ),
    Recorded(
        "Command A: a thought that the prompt has opened, and text",
        *("cohere_command3", "cohere_command3"),
        "Hm.<|END_THINKING|><|START_TEXT|>It is sunny.<|END_TEXT|>",
        content="It is sunny.",
        reasoning="Hm.",
        prompt_end="<|CHATBOT_TOKEN|><|START_THINKING|>",
    ),
    Recorded(
        "Apertus: names as keys",
        *("apertus", "apertus"),
        f'<|inner_prefix|>Hm.<|inner_suffix|>I look.<|tools_prefix|>[{{"get_weather": {ODD_JSON}}}, {{"now": {{}}}}]'
        "<|tools_suffix|>",
        content="I look.",
        reasoning="Hm.",
        calls=(("get_weather", ODD), NOW),
    ),
    Recorded(
        "Apriel 1.6: the prompt has begun the reasoning",
        *("minimax", "apriel"),
        "I'm\nthinking\n[BEGIN FINAL RESPONSE]\nI look.\n"
        f'<tool_calls>[{{"name": "get_weather", "arguments": {PARIS}, "id": "0"}}]</tool_calls>\n[END FINAL RESPONSE]',
        content="I look.",
        reasoning="I'm\nthinking",
        calls=(WEATHER,),
        prompt_end="<|begin_assistant|>\nHere are my reasoning steps:\n",
    ),
    Recorded(
        "Apriel 1.5",
        *("minimax", "apriel"),
        "Here are my reasoning steps:\nEasy.\n[BEGIN FINAL RESPONSE]\nIt is 4.\n[END FINAL RESPONSE]",
        content="It is 4.",
        reasoning="Easy.",
    ),
    Recorded(
        "MiniMax-M1: calls in lines",
        *("minimax", "deepseek_r1"),
        f'<think>\nHm.\n</think>\n<tool_calls>\n{{"name": "get_weather", "arguments": {PARIS}}}\n'
        '{"name": "now", "arguments": {}}\n</tool_calls>',
        reasoning="Hm.",
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "Nemotron Nano 2",
        *("nemotron_json", "qwen3"),
        f'Hm.\n</think>\n\n<TOOLCALL>[{{"name": "get_weather", "arguments": {PARIS}}}]</TOOLCALL>\n',
        reasoning="Hm.",
        calls=(WEATHER,),
        prompt_end="<SPECIAL_11>Assistant\n<think>\n",
    ),
    Recorded(
        "Granite 3.3: a list to the end",
        *("granite", "granite"),
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]',
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "Granite 3.1: the mark as text",
        *("granite", "none"),
        f'<tool_call>[{{"name": "get_weather", "arguments": {PARIS}}}]',
        calls=(WEATHER,),
    ),
    Recorded(
        "Granite 3.3: thought and response",
        *("granite", "granite"),
        "<think>2 < 3</think><response>It is so.</response>",
        content="It is so.",
        reasoning="2 < 3",
    ),
    Recorded(
        "Granite 3.2: thought and response in prose",
        *("granite", "granite"),
        "Here is my thought process:\n\n2 < 3\n\nHere is my response:\n\nIt is so.",
        content="It is so.",
        reasoning="2 < 3",
    ),
    Recorded(
        "Phi-4-mini",
        *("phi4_mini_json", "none"),
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]'
        "<|/tool_call|>",
        calls=(WEATHER, NOW),
    ),
    Recorded(
        "Phi-4-mini: functools",
        *("phi4_mini_json", "none"),
        f'functools[{{"name": "get_weather", "arguments": {PARIS}}}]',
        calls=(WEATHER,),
    ),
    Recorded(
        "Functionary 3.1",
        *("functionary", "none"),
        f"I look.<function=get_weather>{ODD_JSON}</function><function=now>{{}}</function>",
        content="I look.",
        calls=(("get_weather", ODD), NOW),
    ),
    Recorded(
        "OLMo 3: a call a line",
        *("olmo3", "deepseek_r1"),
        "Hm.</think>I look.\n<function_calls>\nget_weather(city='Paris', days=2)\nnow()\n</function_calls>",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER, NOW),
        prompt_end="<|im_start|>assistant\n<think>",
    ),
    Recorded(
        "LFM2: what Python does not allow",
        *("lfm2", "deepseek_r1"),
        '<think>Hm.</think>I look.<|tool_call_start|>[get_weather(city=\'a\nfrom="b", c\', from="Rome", class=true)]'
        "<|tool_call_end|>",
        content="I look.",
        reasoning="Hm.",
        calls=(("get_weather", {"city": 'a\nfrom="b", c', "from": "Rome", "class": True}),),
    ),
    Recorded(
        "Ministral 3: a thought, words and a call with an id",
        *("mistral", "mistral"),
        f"[THINK]Hm.[/THINK]I look.[TOOL_CALLS]get_weather[CALL_ID]Ab3dEf7hI[ARGS]{PARIS}",
        content="I look.",
        reasoning="Hm.",
        calls=(WEATHER,),
    ),
]

BROKEN = [
    ("gemma4", "<|tool_call>call:now{a:[1,2<tool_call|>"),
    ("gemma4", '<|tool_call>call:now{a:<|"|>b<tool_call|>'),
    ("gemma4", "<|tool_call>call:now{a b}<tool_call|>"),
    ("gemma4", "<|tool_call>call:{}<tool_call|> and <|tool_call>now{}"),
    ("functiongemma", "<start_function_call>now{}<end_function_call>"),
    ("glm45", "<tool_call>now\nwell<arg_key>a</arg_key></tool_call>"),
    ("glm45", '<tool_call>{"name": "now"}</tool_call>'),
    ("seed_oss", "<seed:tool_call>\n<function=now>\n<parameter=a>1\n</function>\n</seed:tool_call>"),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="now">1</invoke>'),
    ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>none<｜tool▁call▁end｜>"),
    ("kimi_k2", "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>[]<|tool_call_end|>"),
    ("cohere_command3", '<|START_ACTION|>[{"name": "now", "parameters": {}}]<|END_ACTION|>'),
    ("apertus", '<|tools_prefix|>[{"now": 5}]<|tools_suffix|>'),
    ("apertus", "<|tools_prefix|>[now]<|tools_suffix|>"),
    ("minimax", "<tool_calls>none</tool_calls>"),
    ("granite", "<|tool_call|>none"),
    ("granite", '[{"name": "Ada", "arguments": {}}]'),
    ("phi4_mini_json", 'functools[{"name": "Ada", "arguments": {}}] is a list'),
    ("functionary", "<function=now>a</function>"),
    ("olmo3", "<function_calls>now(a=)</function_calls>"),
    ("lfm2", "<|tool_call_start|>[now(print)]<|tool_call_end|>"),
]
"""Parsers with answers of which nothing is a call, so that all of it is content."""
