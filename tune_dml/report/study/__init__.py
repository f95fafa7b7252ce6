"""Several sweeps of one space, on several data sets or with several arms, as one study: what carries over, what tuning gains."""

from tune_dml.report.study.findings import StudyAnalysis, analyse_study
from tune_dml.report.study.page import study_data, study_sentences, write_study

__all__ = ["StudyAnalysis", "analyse_study", "study_data", "study_sentences", "write_study"]
