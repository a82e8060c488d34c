"""The report's style sheet. The page's content policy admits exactly this text, by its hash."""

from __future__ import annotations

import base64
import hashlib

_COLOURS = """
:root{color-scheme:light dark;
--paper:#f4f5f4;--card:#fff;--ink:#1a2226;--soft:#556067;--faint:#98a2a8;--rule:#e4e8e6;--edge:#dde2e0;
--accent:#0b5f8a;--up:#0b5f8a;--down:#a3c9dd;--again:#c4661f;--site:#8d979d;
--took:#8fbcd3;--sat:#a8730b;--bad:#b3321f;--bad-bg:#fdf0ec;
--warn:#744700;--warn-bg:#fff5df;--warn-edge:#e9c478;--good:#1d6b44;--good-bg:#e6f4ec;
--info:#2b5472;--info-bg:#e9f1f7;--info-edge:#bcd3e3;
--s0:#0b5f8a;--s1:#b4551a;--s2:#1d7a4f;--s3:#8a3f9c;--s4:#14777c;--s5:#b0266e;--s6:#8d6108;--s7:#5b6770}
@media (prefers-color-scheme:dark){:root{
--paper:#12171a;--card:#1a2125;--ink:#e7ecee;--soft:#a8b3b9;--faint:#6f7b82;--rule:#2b353a;--edge:#2d373c;
--accent:#7cc0e8;--up:#63aedb;--down:#32566b;--again:#e8955a;--site:#6c7a82;
--took:#3d7191;--sat:#e0b04a;--bad:#f58b76;--bad-bg:#3a201b;
--warn:#f3cf86;--warn-bg:#33290f;--warn-edge:#6f5520;--good:#86d3a8;--good-bg:#17301f;
--info:#9cc6e6;--info-bg:#182a38;--info-edge:#2f4c61;
--s0:#63aedb;--s1:#e8955a;--s2:#6cc795;--s3:#c48bd6;--s4:#5cc8cc;--s5:#f08abb;--s6:#e0b04a;--s7:#a8b3b9}}
"""

# What is inside a drawing, in a page or in a file of its own.
_CHART = """.rule{stroke:var(--rule)}
.zero{stroke:var(--faint)}
.tick,.name{fill:var(--soft);font-variant-numeric:tabular-nums}
.mid{text-anchor:middle}
.end{text-anchor:end}
.line{color:var(--site)}
.line path{fill:none;stroke:currentColor;stroke-width:1.2;stroke-linejoin:round;stroke-linecap:round}
.line circle{fill:currentColor}
.line.site:hover{color:var(--ink)}
.line.mean,.line.own{color:var(--accent)}
.line.mean path{stroke-width:2.6}
.line.own path{stroke-width:1.8}
.leader{fill:none;stroke:var(--faint);stroke-dasharray:1.5 2}
.name.mean{fill:var(--accent);font-weight:700}
.up{fill:var(--up)}.down{fill:var(--down)}.again{fill:var(--again)}
.band{fill:currentColor;fill-opacity:.13}
.quartiles{fill:currentColor;fill-opacity:.16}
.middle{stroke:currentColor;stroke-width:2.6;stroke-linecap:round}
.site-dot circle{fill:currentColor;fill-opacity:.6}
.error{stroke:currentColor;stroke-width:1.4}
.line.many path{stroke-width:2}
.name.series{fill:currentColor;font-weight:600}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
.d1 path{stroke-dasharray:7 4}.d2 path{stroke-dasharray:2 4}.d3 path{stroke-dasharray:9 3 2 3}
"""

_PAGE = """*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
font-variant-numeric:tabular-nums}
main,footer{max-width:1080px;margin:0 auto;padding:0 28px}
main{padding-top:40px}
h1{font-size:34px;line-height:1.15;letter-spacing:-.02em;margin:0;overflow-wrap:anywhere;font-weight:650}
h2{font-size:20px;line-height:1.3;letter-spacing:-.01em;margin:0 0 4px;font-weight:620}
p{margin:0}
small{font-size:13px;color:var(--soft)}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
pre{margin:6px 0 0;padding:10px 14px;background:var(--paper);border:1px solid var(--edge);border-radius:8px;
overflow-x:auto}
.eyebrow{font-size:13px;color:var(--accent);font-weight:600;margin-bottom:6px}
.title{display:flex;flex-wrap:wrap;gap:8px 16px;align-items:center}
.badge{font-size:13px;font-weight:600;padding:3px 12px;border-radius:99px;background:var(--info-bg);
color:var(--info);overflow-wrap:anywhere}
.badge.finished{background:var(--good-bg);color:var(--good)}
.badge.aborted{background:var(--bad-bg);color:var(--bad)}
.choices{color:var(--soft);margin-top:8px;display:flex;flex-wrap:wrap;gap:2px 22px}
.choices b{color:var(--ink);font-weight:600;overflow-wrap:anywhere}
.banner{margin-top:14px;padding:11px 18px;border-radius:10px;border:1px solid var(--warn-edge);
background:var(--warn-bg);color:var(--warn);overflow-wrap:anywhere;font-size:15px}
.banner.calm{border-color:var(--info-edge);background:var(--info-bg);color:var(--info)}
.banner.bad{border-color:var(--bad);background:var(--bad-bg);color:var(--bad)}
.banner b{margin-right:10px}
.banner small{display:block;color:inherit}
.tiles{display:grid;grid-template-columns:repeat(3,1fr);gap:1px;margin:22px 0 0;padding:0;
background:var(--edge);border:1px solid var(--edge);border-radius:12px;overflow:hidden}
.tiles div{background:var(--card);padding:15px 20px 13px;min-width:0}
.tiles dt{font-size:13.5px;color:var(--soft)}
.tiles dd{margin:1px 0 0;font-size:25px;line-height:1.3;font-weight:620;letter-spacing:-.015em}
.tiles dd em{font-style:normal;font-weight:400;font-size:17px;color:var(--soft);letter-spacing:0;
white-space:nowrap}
.tiles .lead dd:not(.sub){color:var(--accent)}
.tiles dd.sub{font-size:13px;font-weight:400;letter-spacing:0;line-height:1.4}
section{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:24px 28px;
margin-top:18px;min-width:0}
.note{color:var(--soft);font-size:14.5px;max-width:96ch;margin-bottom:16px}
.empty{color:var(--soft);font-size:14.5px}
.scroll+.empty,.scroll+.scroll,.charts+.scroll{margin-top:18px}
.charts{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:24px 36px}
figure{margin:0;min-width:0}
figcaption{font-size:14.5px;font-weight:600;margin-bottom:8px;display:flex;flex-wrap:wrap;gap:2px 18px;
align-items:baseline}
figcaption span{font-weight:400;font-size:13px;color:var(--soft)}
.box{display:inline-block;width:11px;height:11px;border-radius:2px;background:var(--up);margin-right:6px}
.box.below{background:var(--down)}
.box.again{background:var(--again)}
.chart{display:block;width:100%;height:auto;overflow:visible;
font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif}
.chart.narrow{display:none}
.spark{display:block}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:8px 28px;padding:0;margin:0 0 14px;font-size:14px}
.key li{display:flex;gap:9px;align-items:flex-start;line-height:1.35}
.key small,.data td.words small{display:block}
.key i{flex:none;margin-top:2px}
.scroll{position:relative;overflow-x:auto;margin:0 -28px;padding:0 28px;
scrollbar-width:thin;scrollbar-color:var(--faint) transparent}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:-2px;border-radius:8px}
.scroll.tall{max-height:30rem;overflow-y:auto}
table{border-collapse:separate;border-spacing:0;font-size:14px;min-width:100%}
.data th,.data td{padding:7px 0 7px 18px;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap;vertical-align:top}
.data tbody tr:last-child>*{border-bottom:0}
.data thead th{color:var(--soft);font-weight:500;font-size:13px;white-space:normal;vertical-align:bottom;
line-height:1.3;background:var(--card)}
.data.tall thead th{position:sticky;top:0;z-index:2;box-shadow:0 1px 0 var(--rule);border-bottom:0}
.data th:first-child{text-align:left;padding-left:0;font-weight:600;background:var(--card)}
.data thead th:first-child{font-weight:500}
.data td.drawn{padding-top:4px;padding-bottom:3px}
.data td small{margin-left:6px}
.data td.words small{margin-left:0}
.data .words{white-space:normal;text-align:left;min-width:12rem;overflow-wrap:anywhere}
td ul{list-style:none;margin:0;padding:0;display:flex;flex-wrap:wrap;gap:0 16px}
td b{font-weight:600}
.quiet{color:var(--soft)}
.data th[scope=row],.grid th[scope=row]{max-width:16rem;overflow:hidden;text-overflow:ellipsis}
.grid{min-width:0;margin-left:-28px}
.grid th,.grid td{padding:2px 1px;text-align:center;font-weight:400}
.grid th[scope=row],.grid thead th:first-child{text-align:left;position:sticky;left:-28px;z-index:1;
background:var(--card);padding:2px 14px 2px 28px;white-space:nowrap}
.grid th[scope=row]{font-weight:600}
.grid thead th{position:relative;color:var(--soft);font-size:12.5px;padding-bottom:6px}
.grid thead b{font-weight:500;white-space:nowrap}
.grid .total{padding-left:14px;text-align:left;white-space:nowrap;color:var(--soft);font-size:13px}
.grid .total.short{color:var(--ink);font-weight:600}
.grid td>span,.grid thead span{position:absolute;width:1px;height:1px;overflow:hidden;
clip-path:inset(50%);white-space:nowrap}
.grid td{position:relative;line-height:1}
.grid td::before,.key i{content:"";display:block;width:22px;height:18px;
border-radius:3px;margin-left:auto;margin-right:auto;font:700 11px/18px system-ui,sans-serif;text-align:center;
print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none}
.grid.roomy td::before{width:28px}
.grid.some td::before{width:11px}
.grid.many td::before{width:3.6px;border-radius:0}
.grid.some b,.grid.many b{position:absolute;left:0;bottom:6px}
.grid.many th,.grid.many td{padding-left:0;padding-right:0}
.grid.many th[scope=row],.grid.many thead th:first-child{padding:2px 14px 2px 28px}
.grid.many td.total,.grid.many th.total{padding-left:16px}
.grid td.total::before,.grid td.u::before{display:none}
.grid td.u{color:var(--soft)}
.grid .t::before,.key i.t{background:var(--took)}
.grid .d::before,.key i.d::before{content:"✕";font-style:normal}
.grid.many .d::before{content:""}
.grid .d::before,.key i.d{background:var(--bad);color:var(--card)}
.grid .s::before,.key i.s{background:linear-gradient(to top,var(--sat) 50%,transparent 50%);
box-shadow:inset 0 0 0 1.5px var(--sat)}
.grid.many .s::before{box-shadow:none}
.grid .w::before,.key i.w{background:linear-gradient(var(--faint),var(--faint)) center/2px 60% no-repeat}
.grid .a::before,.key i.a{background:linear-gradient(var(--faint),var(--faint)) center/60% 2px no-repeat}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(170px,1fr));gap:14px 28px;margin:12px 0 0}
.facts div:first-child{grid-column:1/-1}
.facts dt{font-size:13.5px;color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.steps{padding:0;margin:10px 0 0;list-style:none;display:grid;gap:12px;font-size:15px}
.steps li{min-width:0}
details{margin-top:18px}
summary{cursor:pointer;color:var(--accent);font-weight:600;font-size:15px}
footer{color:var(--soft);font-size:13px;padding-top:20px;padding-bottom:40px}
@media (max-width:960px){
.charts{grid-template-columns:minmax(0,1fr)}
.chart.wide{max-width:640px}
}
@media (max-width:620px){
body{font-size:15.5px}
main,footer{padding-left:14px;padding-right:14px}
main{padding-top:24px}
h1{font-size:27px}
section{padding:18px 16px;margin-top:14px}
.tiles{grid-template-columns:1fr 1fr}
.tiles .lead{grid-column:1/-1}
.tiles div:last-child{grid-column:1/-1}
.tiles div{padding:12px 16px}
.tiles dd{font-size:21px}
.tiles .lead dd:not(.sub){font-size:27px}
.banner b{display:block}
.chart.wide{display:none}
.chart.narrow{display:block;max-width:420px}
.scroll{margin:0 -16px;padding:0 16px}
.key.cells{display:grid;grid-template-columns:1fr 1fr;gap:8px 14px}
.grid,.data{margin-left:-16px}
.grid th[scope=row],.grid thead th:first-child,.data th:first-child{left:-16px;padding-left:16px;max-width:8.5rem}
.grid.many th[scope=row],.grid.many thead th:first-child{padding-left:16px}
.data th:first-child{position:sticky;z-index:1}
.data.tall thead th:first-child{z-index:3}
}
@media print{body{background:#fff}section,.tiles{break-inside:avoid}.scroll{overflow:visible;max-height:none}
.data th,.data td{white-space:normal;padding-left:10px}.data .words{min-width:0}}
"""

CSS = _COLOURS + _PAGE + _CHART
CSS_HASH = "sha256-" + base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()

DRAWING_CSS = (
    _COLOURS
    + _CHART
    + """.paper{fill:var(--card)}
.chart{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif}
"""
)
