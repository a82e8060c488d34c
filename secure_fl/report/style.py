"""The report's style sheet. The page's content policy admits exactly this text, by its hash."""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root{color-scheme:light dark;
--paper:#f5f6f4;--card:#fff;--ink:#1b2328;--soft:#566169;--faint:#89939a;--rule:#e3e6e4;--edge:#dfe3e1;
--accent:#12635f;--up:#12635f;--down:#9fc4bd;--took:#2c7d76;--sat:#8a6d1f;--bad:#b3372d;
--bad-bg:#fdf0ee;--warn:#7a4a00;--warn-bg:#fff5df;--warn-edge:#e9c478;--good:#1d6b44;--good-bg:#e9f5ee;
--info:#2f5573;--info-bg:#eaf1f7;
--s0:#2f7fb8;--s1:#d9772b;--s2:#3f9a5a;--s3:#c2504f;--s4:#8467b5;--s5:#94674f;--s6:#cc6aa7;--s7:#7a8288;
--s8:#a3982a;--s9:#2a9fb0;--s10:#5b6fd0;--s11:#b0578a}
@media (prefers-color-scheme:dark){:root{
--paper:#12171a;--card:#1a2124;--ink:#e7ecec;--soft:#a9b4b7;--faint:#7d898d;--rule:#2b3438;--edge:#2b3438;
--accent:#74c6bb;--up:#5fb8ac;--down:#3a6662;--took:#48a196;--sat:#d9b653;--bad:#f0897d;
--bad-bg:#371f1d;--warn:#f3cf86;--warn-bg:#34290f;--warn-edge:#6f5520;--good:#86d3a8;--good-bg:#17301f;
--info:#9cc6e6;--info-bg:#182a38;
--s0:#5aa9df;--s1:#ec9a58;--s2:#67bf82;--s3:#e57f7d;--s4:#a98fdb;--s5:#bd9079;--s6:#e497c8;--s7:#9aa4aa;
--s8:#cabf52;--s9:#55c2d1;--s10:#8b9bf0;--s11:#d681b2}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif;
font-variant-numeric:tabular-nums}
main,footer{max-width:1040px;margin:0 auto;padding:0 28px}
main{padding-top:44px}
h1{font-size:34px;line-height:1.15;letter-spacing:-.02em;margin:0;overflow-wrap:anywhere;font-weight:650}
h2{font-size:20px;line-height:1.3;letter-spacing:-.01em;margin:0 0 4px;font-weight:620}
p{margin:0}
small{font-size:12.5px;color:var(--soft)}
.eyebrow{font-size:13px;color:var(--accent);font-weight:600;margin-bottom:8px}
.title{display:flex;flex-wrap:wrap;gap:8px 16px;align-items:center}
.badge{font-size:13px;font-weight:600;padding:3px 12px;border-radius:99px;background:var(--info-bg);
color:var(--info)}
.badge.finished{background:var(--good-bg);color:var(--good)}
.badge.aborted{background:var(--bad-bg);color:var(--bad)}
.choices{color:var(--soft);margin-top:10px;display:flex;flex-wrap:wrap;gap:2px 22px}
.choices b{color:var(--ink);font-weight:600;overflow-wrap:anywhere}
.banner{margin-top:20px;padding:14px 18px;border-radius:10px;border:1px solid var(--warn-edge);
background:var(--warn-bg);color:var(--warn);overflow-wrap:anywhere}
.banner.bad{border-color:var(--bad);background:var(--bad-bg);color:var(--bad)}
.banner b{display:block}
.tiles{display:grid;grid-template-columns:1.7fr 1fr 1fr 1fr;gap:1px;margin:24px 0 0;padding:0;
background:var(--edge);border:1px solid var(--edge);border-radius:12px;overflow:hidden}
.tiles div{background:var(--card);padding:18px 20px 16px;min-width:0}
.tiles dt{font-size:13.5px;color:var(--soft)}
.tiles dd{margin:2px 0 0;font-size:25px;line-height:1.25;font-weight:620;letter-spacing:-.015em}
.tiles dd em{font-style:normal;font-weight:400;font-size:17px;color:var(--soft);letter-spacing:0;
white-space:nowrap}
.tiles .lead dd{font-size:34px;color:var(--accent);line-height:1.1}
.tiles dd.sub{font-size:13px;font-weight:400;letter-spacing:0;color:var(--soft);margin-top:3px}
.tiles small{display:block;line-height:1.4}
section{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:26px 28px 24px;
margin-top:20px;min-width:0}
section>p.note{color:var(--soft);font-size:14.5px;max-width:88ch;margin-bottom:16px}
.empty{color:var(--soft);padding:6px 0}
figure{margin:0}
.chart{display:block;width:100%;height:auto;overflow:visible;
font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","Liberation Sans",sans-serif}
.chart.narrow{display:none}
.chart .rule{stroke:var(--rule);stroke-width:1}
.chart .zero{stroke:var(--faint);stroke-width:1}
.chart .tick,.chart .axis{fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .mid{text-anchor:middle}
.line path{fill:none;stroke:currentColor;stroke-width:1.4;stroke-linejoin:round;stroke-linecap:round;
opacity:.8}
.line .dot{fill:currentColor}
.line.alt path{stroke-dasharray:5 3}
.line.mean path{stroke-width:3.2;opacity:1}
.line:hover path{stroke-width:3;opacity:1}
.leader{fill:none;stroke:currentColor;stroke-width:1;opacity:.45;stroke-dasharray:1.5 2}
.name{fill:currentColor}
.name.mean{font-weight:700}
.mean{color:var(--ink)}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}.s4{color:var(--s4)}
.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}.s8{color:var(--s8)}.s9{color:var(--s9)}
.s10{color:var(--s10)}.s11{color:var(--s11)}
.up{fill:var(--up)}.down{fill:var(--down)}
.key{list-style:none;display:flex;flex-wrap:wrap;gap:8px 28px;padding:0;margin:0 0 16px;font-size:14px}
.key li{display:flex;gap:9px;align-items:flex-start;line-height:1.35}
.key b{font-weight:600}
h2+.key{margin-top:14px}
.key small{display:block}
.key i{flex:none;margin-top:2px}
.key i.box{width:14px;height:14px;border-radius:3px;background:var(--up)}
.key i.box.below{background:var(--down)}
.scroll{position:relative;overflow-x:auto;margin:0 -28px;padding:0 28px;-webkit-overflow-scrolling:touch;
scrollbar-width:thin;scrollbar-color:var(--edge) transparent}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:-2px;border-radius:8px}
.scroll.tall{max-height:34rem;overflow-y:auto}
table{border-collapse:separate;border-spacing:0;font-size:14px;min-width:100%}
.data th,.data td{padding:8px 0 8px 20px;text-align:right;border-bottom:1px solid var(--rule);
white-space:nowrap;vertical-align:top}
.data tbody tr:last-child>*{border-bottom:0}
.data thead th{color:var(--soft);font-weight:500;font-size:13px;white-space:nowrap;vertical-align:bottom;
line-height:1.3;background:var(--card)}
.data.tall thead th{position:sticky;top:0;z-index:2;box-shadow:0 1px 0 var(--rule);border-bottom:0}
.data th:first-child{text-align:left;padding-left:0;padding-right:12px;font-weight:600;background:var(--card)}
.data thead th:first-child{font-weight:500}
.data td small{margin-left:6px}
.data td.next{text-align:left;color:var(--soft)}
.data .words{white-space:normal;text-align:left;min-width:8rem;overflow-wrap:anywhere}
.data.tall td.words{width:30%}
.data thead .words{min-width:0;overflow-wrap:normal}
.quiet{color:var(--soft)}
.data th[scope=row]{max-width:16rem;overflow:hidden;text-overflow:ellipsis}
.grid{min-width:0;margin-left:-28px}
.grid th,.grid td{padding:2px 1px;text-align:center;font-weight:400}
.grid th[scope=row],.grid thead th:first-child{text-align:left;position:sticky;left:-28px;z-index:1;
background:var(--card);padding:2px 14px 2px 28px;white-space:nowrap;max-width:16rem;overflow:hidden;
text-overflow:ellipsis}
.grid th[scope=row]{font-weight:600}
.grid thead th{color:var(--soft);font-size:12px;padding-bottom:6px}
.grid thead b{font-weight:500;display:block;width:12px;white-space:nowrap}
.grid.few thead b{width:auto}
.grid .total{padding-left:14px;text-align:left;white-space:nowrap;color:var(--soft);font-size:13px}
.grid td>span,.grid thead span{position:absolute;width:1px;height:1px;overflow:hidden;
clip-path:inset(50%);white-space:nowrap}
.grid td{position:relative;line-height:1}
.grid td::before,.key i.t,.key i.d,.key i.s,.key i.a{content:"";display:block;width:12px;height:18px;
border-radius:3px;margin:0 auto;font:700 14px/18px system-ui,sans-serif;text-align:center;
print-color-adjust:exact;-webkit-print-color-adjust:exact;forced-color-adjust:none}
.grid.few td::before,.key i.t,.key i.d,.key i.s,.key i.a{width:22px}
.grid.roomy td::before{width:28px}
.grid td.total::before,.grid td.u::before{display:none}
.grid td.u{color:var(--faint)}
.grid .t::before,.key i.t{background:var(--took)}
.grid .d::before{content:"✕"}
.key i.d::before{content:"✕";font-style:normal}
.grid .d::before,.key i.d{background:var(--bad-bg);color:var(--bad);
box-shadow:inset 0 0 0 1.5px var(--bad);font-size:11px}
.grid .s::before,.key i.s{background:linear-gradient(to top,var(--sat) 50%,transparent 50%);
box-shadow:inset 0 0 0 1.5px var(--sat)}
.grid .a::before,.key i.a{background:radial-gradient(circle,var(--faint) 2px,transparent 2.6px)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:14px 28px;margin:14px 0 0}
.facts dt{font-size:13.5px;color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:13px;padding-top:22px;padding-bottom:44px}
@media (max-width:760px){
body{font-size:15.5px}
main,footer{padding-left:14px;padding-right:14px}
main{padding-top:26px}
h1{font-size:27px}
section{padding:20px 16px 18px;margin-top:14px}
.tiles{grid-template-columns:1fr 1fr}
.tiles .lead,.tiles div:last-child{grid-column:1/-1}
.tiles div{padding:14px 16px}
.tiles dd{font-size:21px}
.tiles dd.sub{font-size:13px}
.chart.wide{display:none}
.chart.narrow{display:block;max-width:520px;margin:0 auto}
.scroll{margin:0 -16px;padding:0 16px}
.key{gap:8px 20px}
.key.cells{display:grid;grid-template-columns:1fr 1fr}
.grid th[scope=row],.grid thead th:first-child{left:-16px;padding-left:16px;max-width:8.5rem}
.data th:first-child{position:sticky;left:-16px;z-index:1;padding-left:16px;max-width:8.5rem}
.data.tall thead th:first-child{z-index:3}
.data{margin-left:-16px}
.grid{margin-left:-16px}
.data td{padding-left:16px}
.data td.words:last-child{min-width:15rem}
}
@media print{body{background:#fff}section,.tiles{break-inside:avoid}.scroll{overflow:visible;max-height:none}
.chart.wide{display:block}.chart.narrow{display:none}}
"""

CSS_HASH = "sha256-" + base64.b64encode(hashlib.sha256(CSS.encode()).digest()).decode()
