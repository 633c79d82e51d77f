"""Chat templates render as Hugging Face renders them, and cannot leave their sandbox."""

from __future__ import annotations

import pytest

from backend.embedded.chat_template import ChatTemplateError, render_chat

MESSAGES = [{"role": "user", "content": "Hi <b>&"}, {"role": "assistant", "content": "Yes"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(template: str, *, add_generation_prompt: bool = True, **template_kwargs: object) -> str:
    return render_chat(
        template,
        MESSAGES,
        special_tokens=SPECIAL,
        add_generation_prompt=add_generation_prompt,
        template_kwargs=template_kwargs,
    )


def test_a_chatml_template_opens_the_assistants_turn() -> None:
    template = (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    turns = "<|im_start|>user\nHi <b>&<|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n"
    assert render(template) == turns + "<|im_start|>assistant\n"
    assert render(template, add_generation_prompt=False) == turns


def test_special_tokens_and_a_requests_own_variables_can_be_named() -> None:
    assert render("{{ bos_token }}{{ enable_thinking }}", enable_thinking=False) == "<s>False"


def test_a_request_cannot_replace_the_messages() -> None:
    assert render("{{ messages[0].content }}", messages=[{"content": "other"}]) == "Hi <b>&"


def test_block_lines_leave_no_white_space() -> None:
    assert render("  {% if true %}\nyes\n  {% endif %}\n") == "yes\n"


def test_loops_can_be_left_and_json_is_not_escaped_for_html() -> None:
    assert render("{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}") == (
        '{"role": "user", "content": "Hi <b>&"}'
    )


def test_what_the_assistant_says_may_be_marked_for_training() -> None:
    assert render("a{% generation %}{{ messages[1].content }}{% endgeneration %}b") == "aYesb"


def test_a_template_that_refuses_is_quoted() -> None:
    with pytest.raises(ChatTemplateError, match="Roles must alternate"):
        render("{{ raise_exception('Roles must alternate') }}")


@pytest.mark.parametrize(
    "template", ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{% for %}", "{{ 1 + '' }}"]
)
def test_a_template_that_breaks_out_or_breaks_is_an_error(template: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(template)
