"""Fidelity sheets: every training decision of a paper's code or text beside ours; the source of docs/fidelity.md."""

from search_spaces.fidelity.dro import DRO_SHEET
from search_spaces.fidelity.mpa import MPA_SHEET
from search_spaces.fidelity.multi_similarity import MS_SHEET
from search_spaces.fidelity.proxy_anchor import PROXY_ANCHOR_SHEET
from search_spaces.fidelity.sec import SEC_SHEET
from search_spaces.fidelity.sec_others import FACES_SHEET, SIMCLR_SHEET
from search_spaces.fidelity.soft_triple import SOFT_TRIPLE_SHEET

SHEETS = (SEC_SHEET, FACES_SHEET, SIMCLR_SHEET, DRO_SHEET, MPA_SHEET, PROXY_ANCHOR_SHEET, MS_SHEET, SOFT_TRIPLE_SHEET)
