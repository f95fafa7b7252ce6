"""Pages about several sweeps: a study of one space, or a comparison of any sweeps."""

from tune_dml.report.several.comparison import SweepComparison, compare_sweeps, on_the_same_data
from tune_dml.report.several.comparison_page import comparison_data, comparison_sentences, write_comparison
from tune_dml.report.several.ranks import rank_agreements
from tune_dml.report.several.study import StudyAnalysis, analyse_study
from tune_dml.report.several.study_page import study_data, study_sentences, write_study

__all__ = [
    "StudyAnalysis",
    "SweepComparison",
    "analyse_study",
    "compare_sweeps",
    "comparison_data",
    "comparison_sentences",
    "on_the_same_data",
    "rank_agreements",
    "study_data",
    "study_sentences",
    "write_comparison",
    "write_study",
]
