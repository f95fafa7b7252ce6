"""Pages about several sweeps: a study of one space, a comparison of any sweeps, an atlas, and an audit."""

from tune_dml.report.several.comparison import SweepComparison, assume_same_data, compare_sweeps, rank_agreements
from tune_dml.report.several.comparison_page import comparison_data, comparison_sentences, write_comparison
from tune_dml.report.several.study import StudyAnalysis, analyse_study
from tune_dml.report.several.study_page import study_data, study_sentences, write_study

__all__ = [
    "StudyAnalysis",
    "SweepComparison",
    "analyse_study",
    "assume_same_data",
    "compare_sweeps",
    "comparison_data",
    "comparison_sentences",
    "rank_agreements",
    "study_data",
    "study_sentences",
    "write_comparison",
    "write_study",
]
