#!/usr/bin/env python3
"""Renders chat templates with Python's jinja2, set up as HuggingFace transformers sets it up, and stores what comes out.

crates/session/src/template/tests.rs renders the same templates and compares. Needs transformers (without torch) and
jinja2; run it in an environment of its own:

    python3 -m venv .venv && .venv/bin/pip install transformers jinja2
    .venv/bin/python scripts/template_cases.py crates/session/tests/fixtures/templates.json

The templates are ours: the first part in the shapes that published families have, the second one construct each.
"""
import datetime
import json
import platform
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils

NOW = datetime.datetime(2026, 3, 7, 4, 5, 6)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


utils.datetime = Clock

SHORT = [{"role": "user", "content": "Hello!"}]
TALK = [
    {"role": "system", "content": "You are  helpful.\n"},
    {"role": "user", "content": "  What is 2 + 2? <b>&\"'é灯🐍</b>\n"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4, I think."},
    {"role": "user", "content": "Thanks\r\nand bye"},
]
NO_SYSTEM = TALK[1:]
TOOLS_TALK = TALK + [{"role": "tool", "content": '{"a": [1, 2.5, null, true]}'}]
ODD = [{"role": "user", "content": ""}, {"role": "assistant", "content": "ΑΣ ΣΑΣ ǆ ß İ ﬁ o'neil\tx\u00a0\u2028\x1c"}]
TALKS = {"short": SHORT, "talk": TALK, "no system": NO_SYSTEM, "tools": TOOLS_TALK, "odd": ODD, "empty": []}

FAMILIES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml with a default system": "{% if messages and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a bot.<|im_end|>\n' }}{% endif %}{% for message in messages %}{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content | trim ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama 2": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama 3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "llama 3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- the system message, if there is one #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool call at once") }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral 1": "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}",
    "mistral 3": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
""",
    "gemma": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}",
    "gemma 3": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
""",
    "phi 3": "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi 3.5": "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + '<|end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "phi 4": "{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}",
    "qwen 2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "qwen 2.5": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen.' }}
    {%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are Qwen.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}{{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "qwen 3": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "deepseek 2": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
    "deepseek r1": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜>' + message['content']}}{%- set ns.is_output_first = false %}{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}",
    "zephyr": "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "vicuna": "{% if messages and messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim + '\n\n' }}{% set messages = messages[1:] %}{% endif %}{% for message in messages %}{{ {'user': 'USER', 'assistant': 'ASSISTANT'}.get(message.role, message.role | upper) + ': ' + message.content.strip() }}{{ '\n' if message.role == 'user' else eos_token + '\n' }}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
    "alpaca": "{% for message in messages %}{% if message['role'] == 'user' %}### Instruction:\n{{ message['content']|trim -}}{% if not loop.last %}\n\n{% endif %}{% elif message['role'] == 'assistant' %}### Response:\n{{ message['content']|trim -}}{% if not loop.last %}\n\n{% endif %}{% elif message['role'] == 'system' %}{{ message['content']|trim -}}{% if not loop.last %}\n\n{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt and messages and messages[-1]['role'] != 'assistant' %}\n\n### Response:\n{% endif %}",
    "command r": "{{ bos_token }}{% if messages and messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Command-R.' %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% for message in loop_messages %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}",
    "granite": """{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>' }}
    {%- for tool in tools %}{{- tool | tojson(indent=4) }}{%- if not loop.last %}{{- '\\n\\n' }}{%- endif %}{%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}""",
    "olmo": "{{ bos_token }}{% for message in messages %}\n{% if message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] }}\n{% elif message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "smollm": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are SmolLM<|im_end|>\n' }}{% endif %}{% generation %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endgeneration %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "smollm 3": """{%- set today = strftime_now("%d %B %Y") -%}
{%- if messages and messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set mode = "/no_think" -%}{%- else -%}{%- set mode = "/think" -%}{%- endif -%}
  {%- set custom = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- else -%}
  {%- set mode = "/think" -%}{%- set custom = "" -%}
{%- endif -%}
{{- "<|im_start|>system\\n## Metadata\\n\\nToday Date: " ~ today ~ "\\nReasoning Mode: " + mode + "\\n\\n" }}
{%- if custom -%}{{- custom + "\\n\\n" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{# the turns #}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ "<|im_start|>assistant\\n" }}{%- endif -%}
""",
    "yi": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "internlm": "{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "baichuan": "{% for message in messages %}{% if message['role'] == 'user' %}<reserved_106>{{ message['content'] }}{% elif message['role'] == 'assistant' %}<reserved_107>{{ message['content'] }}{% else %}{{ message['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<reserved_107>{% endif %}",
    "chatglm": "[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined and item['role'] == 'system' %}{% set _ = 1 %}{% endif %}{% if item['content'] is not none %}<|{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "exaone": "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '[|system|][|endofturn|]\n' }}{% endif %}{{ '[|' + message['role'] + '|]' + message['content'] }}{% if message['role'] == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}",
    "nemotron": "{{'<extra_id_0>System'}}{% for message in messages %}{% if message['role'] == 'system' %}{{'\n' + message['content'].strip()}}{% if tools or contexts %}{{'\n'}}{% endif %}{% endif %}{% endfor %}{% if tools %}{% for tool in tools %}{{'\n<tool> ' + tool|tojson + ' </tool>'}}{% endfor %}{% endif %}{{'\n\n'}}{% for message in messages %}{% if message['role'] == 'user' %}{{'<extra_id_1>User\n' + message['content'].strip() + '\n'}}{% elif message['role'] == 'assistant' %}{{'<extra_id_1>Assistant\n' + message['content'].strip() + '\n'}}{% elif message['role'] == 'tool' %}{{'<extra_id_1>Tool\n' + message['content'].strip() + '\n'}}{% endif %}{% endfor %}{%- if add_generation_prompt %}{{'<extra_id_1>Assistant\n'}}{%- endif %}",
    "openchat": "{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + message['content'] + '<|end_of_turn|>'}}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct Assistant:' }}{% endif %}",
    "solar": "{% for message in messages %}{% if message['role'] == 'system' %}{% if message['content']%}{{'### System:\n' + message['content']+'\n\n'}}{% endif %}{% elif message['role'] == 'user' %}{{'### User:\n' + message['content']+'\n\n'}}{% elif message['role'] == 'assistant' %}{{'### Assistant:\n'  + message['content']}}{% endif %}{% if loop.last and add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}{% endfor %}",
    "falcon": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{{ message['role'].capitalize() + ': ' + message['content'].replace('\r\n', '\n').replace('\n\n', '\n') }}{% endfor %}{% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %}",
    "falcon 3": "{% if tools %}{% for message in messages %}{% endfor %}{% else %}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + eos_token + '\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}{% endif %}",
    "bitnet 2b": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = message['role'] | capitalize + ': '+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}",
    "a macro for tools": """{%- macro render(schema, depth=0) -%}
{%- if schema is mapping -%}{ {%- for key, value in schema.items() %}{{ key }}: {{ render(value, depth + 1) }}{{ ", " if not loop.last }}{% endfor -%} }
{%- elif schema is string -%}"{{ schema }}"
{%- elif schema is sequence -%}[{%- for item in schema %}{{ render(item, depth + 1) }}{% if not loop.last %}, {% endif %}{% endfor -%}]
{%- else -%}{{ schema }}/{{ depth }}{%- endif -%}
{%- endmacro -%}
{{ render({'a': [1, 'b', {'c': none}], 'd': true}) }}
{% for message in messages %}{{ render(message) }}
{% endfor %}""",
    "tools as iterable": "{% if tools is iterable and tools | length > 0 %}{{ tools | tojson }}{% else %}no tools{% endif %}{% for m in messages %}{{ m.role }}={{ m.content | length }};{% endfor %}",
    "documents": "{% if documents %}{% for d in documents %}{{ d.title }}{% endfor %}{% elif documents is none %}none{% endif %}{{ documents is defined }}",
    "content in parts": "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}\n{% endfor %}",
    "only the last": "{% set last = messages | last %}{{ last.content if last is defined else 'nothing' }}{% set users = messages | selectattr('role', 'eq', 'user') | map(attribute='content') | list %}{{ users | join(' // ') }}",
    "merged turns": "{% set ns = namespace(out=[], role='') %}{% for m in messages %}{% if m.role == ns.role %}{% set ns.out = ns.out[:-1] + [ns.out[-1] + ' ' + m.content | trim] %}{% else %}{% set ns.out = ns.out + [m.content | trim] %}{% endif %}{% set ns.role = m.role %}{% endfor %}{% for text in ns.out %}<{{ loop.index }}/{{ loop.length }}>{{ text }}{% endfor %}",
}

# One construct each. What is refused by name there is allowed to be; what is rendered must be equal.
CONSTRUCTS = [
    # printing
    "{{ [1, 'a', \"it's\", 'say \"x\"', none, true, 2.0, [], {}, (), (1,), (1, 2)] }}",
    "{{ {'a': 1, 2: 'b', none: [true], 'k': {'n': 1.5}} }}",
    "{{ messages }}", "{{ messages[0] }}", "{{ messages | map(attribute='content') | list }}",
    "{{ true }} {{ none }} {{ false ~ none ~ [1] ~ 2.0 }}",
    "{{ 1e16 }} {{ 123456789.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1.5e300 }} {{ 3.0 }} {{ 1e22 }} {{ 0.1 + 0.2 }} {{ -0.0 }}",
    "{{ 10 / 4 }} {{ 8 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
    "{{ undefined_name }}|{{ undefined_name | default('d') }}|{{ undefined_name is defined }}",
    "{{ '' }}{{ '\\t' }}{{ '\\x41\\u00e9\\101' }}{{ '\\q' }}", "{{ 'a' 'b' \"c\" }}",
    "{{ range(5) }} {{ range(1, 10, 3) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }}",
    "{{ messages[0].items() if messages else '' }}", "{{ {'a': 1}.keys() }} {{ {'a': 1}.values() }} {{ {'a': 1}.items() | list }}",
    "{{ 'ab\\ncd\\\\\\'' | list }}", "{{ ['é', '灯', '🐍', '\\x00', '\\x7f', '\\xa0', '\\u200b', '\\u2028', '\\u0301'] }}",
    # undefined
    "{{ messages[99] }}|{{ messages[99] is defined }}", "{{ messages[99].content }}", "{{ nope.attr }}", "{{ nope + 'x' }}", "{{ nope ~ 'x' }}",
    "{{ nope == nope2 }} {{ nope == none }} {{ not nope }} {{ nope | length }} {{ nope in [1] }}", "{{ 'x' in nope }}", "{% for x in nope %}x{% else %}else{% endfor %}",
    "{{ nope < 1 }}", "{{ nope() }}", "{{ nope is sequence }} {{ nope is iterable }} {{ nope is mapping }} {{ nope is string }} {{ nope is callable }}", "{{ nope | upper }}|{{ nope | trim }}|{{ nope | join(',') }}|{{ nope | first }}",
    "{{ ('a' if false) }}|{{ ('a' if false) is defined }}", "{{ {'a': 1}.b }}|{{ {'a': 1}['b'] }}|{{ 'abc'[7] }}",
    # tojson
    "{{ messages | tojson }}", "{{ messages | tojson(indent=2) }}", "{{ messages | tojson(ensure_ascii=true) }}", "{{ {'b': 1, 'a': [1, 2.0, none, true, 'x<>&\\'\"/\\x7f']} | tojson }}",
    "{{ {'b': 1, 'a': [], 'c': {}} | tojson(sort_keys=true, indent=4) }}", "{{ [1, {'a': 2}] | tojson(separators=(',', ':')) }}", "{{ [1, [2]] | tojson(none, '\\t') }}", "{{ (1, 2) | tojson }}{{ 'a\\x01\\b\\f' | tojson }}", "{{ {1: 2, none: 3, true: 4} | tojson }}", "{{ nope | tojson }}", "{{ 1e20 | tojson }} {{ 1.0 | tojson }} {{ 1e-7 | tojson }}",
    # strings
    "{% for m in messages %}{{ m.content.split() }}{{ m.content.split(' ') }}{{ m.content.split(' ', 1) }}{{ m.content.rsplit(none, 1) }}{{ m.content.rsplit(' ', 1) }}\n{% endfor %}",
    "{{ ' a  b '.split() }} {{ ' a  b '.split(' ') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.split(',', maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split('') }}",
    "{% for m in messages %}{{ m.content.upper() }}|{{ m.content.lower() }}|{{ m.content.title() }}|{{ m.content.capitalize() }}|{{ m.content | title }}|{{ m.content | capitalize }}|{{ m.content | upper }}|{{ m.content | lower }}\n{% endfor %}",
    "{% for m in messages %}{{ m.content.strip() }}|{{ m.content.lstrip() }}|{{ m.content.rstrip() }}|{{ m.content.strip('Y.\\n u') }}|{{ m.content | trim }}|{{ m.content | trim('!H') }}\n{% endfor %}",
    "{{ 'xxaxx'.strip('x') }}{{ 'xxx'.strip('x') }}|{{ ''.strip() }}|{{ '  '.lstrip() }}|{{ 'ab'.rstrip('abc') }}",
    "{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'ab')) }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('') }} {{ 'abc'.endswith('c', 0, 2) }}", "{{ 'abc'.startswith(['a']) }}", "{{ 'abc'.startswith(1) }}",
    "{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ 'abc'.replace('', '.') }} {{ 'abc'.replace('', '.', 2) }} {{ ''.replace('', 'x') }} {{ 'aaa'.replace('aa', 'b') }}", "{{ 'a-b' | replace('-', 1) }} {{ 123 | replace(2, 'x') }} {{ 'aaa' | replace('a', 'b', 2) }}",
    "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ ','.join({'a': 1}) }}", "{{ ','.join([1, 2]) }}", "{{ [1, none, 'a', [2]] | join('|') }} {{ ['a'] | join }} {{ messages | join(',', attribute='role') }}",
    "{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'hello'.find('l', 3) }} {{ 'hello'.find('l', -2, -1) }}", "{{ 'abc'.index('z') }}",
    "{{ 'abc'.isdigit() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab1'.isalnum() }} {{ 'ab'.isalpha() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ ' \\t'.isspace() }} {{ 'Ab Cd'.istitle() }} {{ '1'.isnumeric() }}", "{{ 'é'.isalpha() }}", "{{ '1'.isupper() }} {{ 'É'.isupper() }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removeprefix('x') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
    "{{ 'ab'.center(5) }}|{{ 'ab'.center(6, '*') }}|{{ 'abc'.center(6, '*') }}|{{ 'ab'.ljust(4) }}|{{ 'ab'.rjust(4, '.') }}|{{ '-5'.zfill(4) }}|{{ 'x'.zfill(3) }}|{{ 'aBc'.swapcase() }}",
    "{{ 'a\\nb\\r\\nc\\x0bd\\n'.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ''.splitlines() }}{% for m in messages %}{{ m.content.splitlines() }}{% endfor %}",
    "{{ 'abc'[0] }} {{ 'abc'[-1] }} {{ 'abc'[1:] }} {{ 'abc'[:-1] }} {{ 'abc'[::-1] }} {{ 'abcdef'[1:5:2] }} {{ 'abc'[5:] }} {{ [1,2,3,4][-2:] }} {{ [1,2,3,4][::-2] }} {{ (1,2,3)[1:] }} {{ 'abc'[::0] }}",
    "{{ 'abc'[0:none] }} {{ [1,2,3][:2] }} {{ range(10)[3] }} {{ [[1,2],[3]][0][1] }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 2 * 'x' }} {{ 'a' * -1 }}|", "{{ 'a' + 1 }}", "{{ [1] + [2] }} {{ (1,) + (2,) }}", "{{ [1] + (2,) }}",
    "{{ 'b' in 'abc' }} {{ '' in 'abc' }} {{ 1 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 'z' not in 'abc' }} {{ 1 in (1,) }} {{ not 1 in [1] }}", "{{ 1 in 'abc' }}", "{{ 1 in 5 }}", "{{ 'a%s' % 'b' }}", "{{ 'a{}'.format('b') }}", "{{ '%s!' | format('x') }}", "{{ 'abc'.encode() }}", "{{ 'abc'.casefold() }}",
    # comparisons
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) == [1] }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ none == none }} {{ {'a': 1} == {'a': 1.0} }} {{ 'é' > 'z' }} {{ 1 != 2 }}", "{{ 1 < 'a' }}", "{{ none < 1 }}",
    "{{ 1 and 'x' }} {{ 0 or 'y' }} {{ '' and 1 }}| {{ [] or {} }} {{ not '' }} {{ 1 or nope.x }} {{ 0 and nope.x }} {{ 1 if 2 > 1 else 3 }} {{ 'a' if 0 else 'b' if 0 else 'c' }}", "{{ -3 | abs }} {{ -(2) ** 2 }} {{ 1 - -1 }} {{ +3 }} {{ 2 + 3 * 4 - 1 }} {{ (2 + 3) * 4 }} {{ 'a' ~ 1 + 2 }} {{ 1 ~ 2 * 3 }}",
    # tests
    "{{ 1 is number }} {{ true is number }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is boolean }} {{ 'a' is string }} {{ [] is sequence }} {{ {} is mapping }} {{ {} is sequence }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ none is none }} {{ 1 is odd }} {{ 2 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }}",
    "{{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 1 is in [1, 2] }} {{ 'a' is in 'abc' }} {{ 'a' is not in 'abc' }} {{ 'ab' is lower }} {{ 'AB' is upper }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ none is sameas none }}", "{{ range is callable }} {{ 'a'.upper is callable }} {{ raise_exception is defined }} {{ strftime_now is defined }} {{ 1 is not defined }} {{ (1, 2) is sequence }} {{ range(3) is sequence }}", "{{ 'a' is filter }}", "{{ 'a' is nothing }}", "{{ 'a' is escaped }}", "{% if messages is defined and messages is not none and messages is sequence %}yes{% endif %}",
    # filters
    "{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'c'] | sort }} {{ ['b', 'A'] | sort(case_sensitive=true) }} {{ [1, 2] | sort(reverse=true) }} {{ messages | sort(attribute='content') | map(attribute='role') | list }}", "{{ [1, 'a'] | sort }}", "{{ [3, 1] | min }} {{ [3, 1] | max }} {{ [] | max }}| {{ [1, 2] | sum }} {{ [1.5, 2] | sum }} {{ messages | map('length') | list }}", "{{ [1, 2, 1] | unique | list }} {{ ['a', 'A'] | unique | list }}", "{{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ {'b': 1, 'a': 2} | dictsort }} {{ {'a': 1} | items | list }} {{ {'b': 1, 'a': 2} | dictsort(by='value', reverse=true) }}", "{{ [0, 1, 2] | select | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2, 3] | reject('equalto', 2) | list }} {{ [1, 2] | select('gt', 1) | list }}",
    "{{ messages | selectattr('role', '==', 'user') | list | length }} {{ messages | rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | join(',') }} {{ messages | selectattr('content') | list | length }} {{ messages | map(attribute='nope', default='-') | join }} {{ messages | map('attr', 'role') | list }}", "{{ ['a', 'b'] | map('upper') | list }} {{ ['a'] | map('replace', 'a', 'b') | first }} {{ [[1], []] | map('first') | list }} {{ ['1', 'x'] | map('int', default=7) | list }}", "{{ messages | map(attribute='content') }}", "{{ (messages | selectattr('role')) | length }}", "{% set g = messages | selectattr('role') %}{{ g | list | length }}{{ g | list | length }}{{ 1 if g else 0 }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ 'a\\nb\\n' | indent('>') }}|{{ '' | indent }}|{% for m in messages %}{{ m.content | indent(3) }}{% endfor %}", "{{ '42' | int }} {{ ' 42 ' | int }} {{ '4.7' | int }} {{ 'x' | int }} {{ 'x' | int(9) }} {{ 3.9 | int }} {{ none | int }} {{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ '0x1f' | int(0, 16) }}", "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ 1234.5678 | round(1) }} {{ 5 | round(1) }}", "{{ 1 | string }} {{ none | string }} {{ [1] | string }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first }}| {{ {'a': 1} | list }} {{ {'a': 1} | length }} {{ 'abc' | count }} {{ 5 | length }}", "{{ nope | d('x') }} {{ '' | default('x') }} {{ '' | default('x', true) }} {{ none | default('x') }} {{ none | d('x', boolean=true) }} {{ nope.a | default('x') }}", "{{ {'a': none}.a | default('x') }} {{ {}.a | default('x') }} {{ messages[0].nothing | default('y') }}",
    "{{ '<a>' | safe }} {{ '<a & \"b\" \\'c\\'>' | e }} {{ '<x>' | escape ~ '!' }}", "{{ ('<a>' | safe) + '<b>' }}", "{{ 'hello world again' | truncate(8) }}", "{{ 'hello world' | wordcount }}", "{{ 'a b' | urlencode }}", "{{ [1, 2, 3] | batch(2) | list }}", "{{ messages | groupby('role') | list | length }}", "{{ '<b>x</b>' | striptags }}", "{{ 'x' | nosuchfilter }}", "{{ 'abc' | center(7) }}|", "{{ 1000000 | filesizeformat }}", "{{ messages | attr('append') }}", "{{ [1, 2] | random }}", "{{ 'a' | pprint }}", "{{ 'ab cd-ef (gh' | title }}",
    # statements
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }};{% endfor %}", "{% for k, v in {'x': 1, 'y': 2}.items() %}{{ k }}={{ v }} {% endfor %}", "{% for a in [1, 2] if a > 1 %}{{ a }}{{ loop.length }}{% else %}none{% endfor %}", "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }} {% endfor %}", "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}", "{% for x in [] %}{% else %}empty{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for x in (1, 2) %}{{ x }}{% endfor %}{% for x in 1, 2 %}{{ x }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(x=1, y=[]) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% set ns.y = ns.y + [i] %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set x = {} %}{% set x.y = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{% set (c, d) = [3, 4] %}{{ c }}{{ d }}", "{% set x %}<{{ 1 + 1 }}>{% endset %}{{ x }}{% set y | upper | replace('A', 'B') %}aa{% endset %}{{ y }}", "{% if x is not defined %}{% set x = 5 %}{% endif %}{{ x }}", "{% with a = 1, b = 2 %}{% set c = a + b %}{{ c }}{% endwith %}{{ c }}{{ a }}", "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% filter upper %}a{{ 'b' }}{% endfilter %}", "{% raw %}{{ x }} {% y %}{% endraw %}|", "{#- a comment -#} x {# b #}y", "{% print 'x' %}", "{% do [].append(1) %}", "{% set x = [] %}{{ x.append(1) }}", "{% set d = {'a': 1} %}{{ d.update({'b': 2}) }}", "{% block a %}x{% endblock %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% autoescape true %}{{ '<' }}{% endautoescape %}", "{% nosuch %}", "{% if true %}x", "{{ 'x' }", "{% endif %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}{{ m.name }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m() %}x{% endmacro %}{{ m(1) }}", "{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{% endcall %}", "{% macro m() %}[{{ caller(1, 2) }}]{% endmacro %}{% call(a, b) m() %}{{ a }}{{ b }}{% endcall %}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{% set y = 1 %}{{ y }}{% endmacro %}{{ m() }}{{ y }}", "{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m }}", "{{ m(1) }}{% macro m(a) %}{% endmacro %}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}", "{% macro m(x) %} {{ x }} {% endmacro %}{{ m('a') | trim ~ '|' }}{{ 'pre' + m('b') }}",
    "{% generation %}{% set q = 1 %}g{{ q }}{% endgeneration %}{{ q }}", "{{ raise_exception('no: ' ~ messages | length) }}", "{{ strftime_now('%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %p %I %%') }}", "{{ strftime_now('%d/%-d/%e/%-m') }}", "{{ strftime_now('%c') }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{% set j = joiner('|') %}{{ j() }}{{ j() }}", "{{ dict(a=1, b='x') }} {{ dict([('k', 1)]) }} {{ dict({'a': 1}, b=2) }}", "{{ namespace(a=1).a }}", "{{ lipsum() }}", "{{ range(200000) | length }}", "{{ {'items': 1}.items }}", "{{ {'get': 5}['get'] }} {{ {'a': {'b': 1}}.a.b }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('z') }} {{ {'a': 1}.get('z', 3) }} {{ {'keys': 1}['keys'] }}", "{{ [1, 2].index(2) }} {{ [1, 1].count(1) }} {{ (1, 2).index(1) }}", "{{ [1].pop() }}", "{{ ''.__class__ }}", "{{ messages.0.role if messages }} {{ [[1, 2]].0.1 }}", "{{ messages[0]['role'] if messages else '' }}{{ messages[-1].content }}", "{{ {**{'a': 1}} }}", "{{ [*[1]] }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}", "{{ {[1]: 2} }}", "{{ 99999999999999999999 }}", "{{ 9223372036854775807 + 1 }}", "{{ 1_000 }} {{ 0x1F }} {{ 0b11 }} {{ 1.5e3 }}", "{{ 012 }}",
    # white space
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\r\n  {% if true %}\r\n  b\r\n  {% endif %}\r\nc\r\n", "  {%+ if true %}x{% endif +%}\n y", "{% for i in [1, 2] %}\n  {{ i }}\n{% endfor %}\nend", "{%- for i in [1, 2] -%}\n  {{- i -}}\n{%- endfor -%}\nend", "x  {{- ' y ' -}}  z", "{% if true -%}\n\n a {%- endif %} b", "\t{# c #}\n{{ 1 }}\n\n", "a {% raw -%}  {{ x }}  {%- endraw %} b", "{% raw %}\n x {% endraw %}\ny", "{{ '\n' }}|\n\n", "line one\n   {% set a = 1 %}   \nline two {% set b = 2 %}\n   line three", "é {{ '灯' }}\u00a0{%- if true %} x {%- endif %}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 1}} }}{{ \"#}\" }}", "{{ {'a': 1}['a'] }}{{ '{{' }}{% if '{%' %}y{% endif %}", "a{#\n multi\n line #}\nb", "{{- 'x' }}  \n  {{ 'y' }}", "  {{ 1 }}  {% if true %}  {% endif %}  \n x", "\n\n{% if true %}\n\n{% endif %}\n\n",
]


def settings():
    for name, template in FAMILIES.items():
        for talk in ["short", "talk", "no system", "tools", "odd"]:
            for generate in [True, False] if talk in ("short", "talk") else [True]:
                yield name, template, talk, generate, True
        yield name, template, "short", True, False
    for template in CONSTRUCTS:
        for talk in ["talk", "odd"]:
            yield template[:40], template, talk, True, True
        yield template[:40], template, "empty", False, False


def render(template, messages, generate, tokens):
    special = {"bos_token": "<s>", "eos_token": "</s>"} if tokens else {}
    compiled = utils._compile_jinja_template(template)
    return compiled.render(
        messages=[dict(m) for m in messages], tools=None, documents=None, add_generation_prompt=generate, **special
    )


def main():
    cases = []
    for name, template, talk, generate, tokens in settings():
        case = {"name": name, "talk": talk, "generate": generate, "tokens": tokens}
        try:
            case["text"] = render(template, TALKS[talk], generate, tokens)
            if " at 0x" in case["text"] or "random" in template:
                case["text"] = None  # an address, or another text each time
        except Exception as e:
            case["error"] = type(e).__name__
        case["template"] = template
        cases.append(case)
    # A template stands once.
    templates = list(dict.fromkeys(c["template"] for c in cases))
    for case in cases:
        case["template"] = templates.index(case["template"])
    out = {
        "made_by": "scripts/template_cases.py",
        "versions": {
            "python": platform.python_version(),
            "jinja2": jinja2.__version__,
            "transformers": transformers.__version__,
        },
        "now": [NOW.year, NOW.month, NOW.day, NOW.hour, NOW.minute, NOW.second],
        "talks": TALKS,
        "templates": templates,
        "cases": cases,
    }
    with open(sys.argv[1], "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=1)
        f.write("\n")
    failed = sum("error" in c for c in cases)
    print(f"{len(templates)} templates, {len(cases)} renderings, {failed} of them errors")


main()
