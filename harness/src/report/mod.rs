//! Gate reports: one record, rendered as text, JSON, Markdown or JUnit.
