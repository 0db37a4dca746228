"""Texts that would run, load or mislead in a page that took them for more than text."""

from __future__ import annotations

import base64

RUN = "window.__pwned=1"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src=\"javascript:parent.{RUN}\"></iframe>",
    f"<object data=\"javascript:{RUN}\"></object>",
    "<embed src=https://evil.example/x>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>x</details>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<a href=\"javascript:{RUN}\">click</a>",
    f"<form action=\"javascript:{RUN}\"><button>go</button></form>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<base href=https://evil.example/>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<style>*{background:url(https://evil.example/leak)}</style>",
    f"<math><mtext></mtext><script>{RUN}</script></math>",
    f"<noscript><p title=\"</noscript><img src=x onerror={RUN}>\">",
    f"<template><script>{RUN}</script></template>",
    f"\"><script>{RUN}</script>",
    f"' onmouseover={RUN} x='",
    f"</textarea></pre></code><script>{RUN}</script>",
    f"]]><script>{RUN}</script>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"[link](javascript:{RUN})",
    f"[link](JaVaScRiPt&colon;{RUN})",
    f"[link](\tjavascript:{RUN})",
    f"[link](data:text/html,<script>{RUN}</script>)",
    f"[link](vbscript:{RUN})",
    "[safe](https://evil.example/ \"title\\\" onclick=alert(1) x=\\\"\")",
    "![picture](https://evil.example/track.png)",
    f"![picture](x\" onerror=\"{RUN})",
    f"![svg](data:image/svg+xml;base64,{base64.b64encode(f'<svg xmlns=http://www.w3.org/2000/svg onload={RUN}>'.encode()).decode()})",
    f"<https://evil.example/{RUN}> https://evil.example/?{RUN}",
    f"```html\n<script>{RUN}</script>\n```",
    f"```\"><script>{RUN}</script>\nx",
    f"| a | b |\n|---|---|\n| <img src=x onerror={RUN}> | [x](javascript:{RUN}) |",
    f"# <script>{RUN}</script>\n> * - 1. <img src=x onerror={RUN}>",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "\x00\x01\x08\x7f\x9b31m\ufeff\u2028\u2029",
    "annex\u202egnp.exe \u2066\u2067\u200b\u200f",
    "\ud800 half a character",
    "__proto__",
    "constructor",
    "{{constructor.constructor('" + RUN + "')()}} ${" + RUN + "} <%= " + RUN + " %>",
    "*" * 300 + "_" * 300 + "[" * 300 + "`" * 301 + ">" * 300,
    "a" * 6_000 + f"<script>{RUN}</script>",
    "\U0001f600" * 200 + "e\u0301\u0302\u0303" * 200,
]  # fmt: skip

assert len(PAYLOADS) >= 40

ALL = " ".join(text for text in PAYLOADS if len(text) < 500 and "```" not in text)
"""For what there is only one of."""

CHECK = """async () => {
  const frames = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  for (let n = 0; n < 2; n++) {
    for (const node of document.querySelectorAll('details:not([open])')) node.open = true;
    for (const node of document.querySelectorAll('main button.small')) if (/^(Show|Read the whole)/.test(node.textContent)) node.click();
    await frames();
  }
  const found = [];
  const never = ['script', 'iframe', 'object', 'embed', 'base', 'meta', 'link', 'style', 'video', 'audio', 'math', 'template', 'frame', 'portal'];
  const ours = '.composer, .login, .inspectform, .question form, .skillform form, .hubbody form';
  for (const node of document.body.querySelectorAll('*')) {
    const tag = node.tagName.toLowerCase();
    if (never.includes(tag) || (tag === 'form' && !node.matches(ours)) || (tag === 'svg' && !node.classList.contains('icon'))) found.push(tag);
    if (tag === 'img' && !/^blob:|icon\\.svg$/.test(node.src)) found.push('img ' + node.src.slice(0, 80));
    for (const { name, value } of node.attributes) {
      if (name.startsWith('on') || (['href', 'src', 'action'].includes(name) && /^\\s*(javascript|vbscript|data):/i.test(value))) found.push(tag + ' ' + name);
    }
  }
  if (!document.title.endsWith('Dragoman')) found.push('title');
  if (window.__pwned !== undefined) found.push('a script ran');
  return found;
}"""
"""Opens what can be opened, and returns what an agent brought to life."""
