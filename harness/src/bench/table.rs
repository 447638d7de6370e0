//! Tables for people: aligned text and Markdown from the same cells.

/// Columns and rows; the first column is left-aligned, the others right-aligned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// Cells of each row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Aligned by spaces.
    pub fn text(&self) -> String {
        let lines: Vec<&Vec<String>> = std::iter::once(&self.head).chain(&self.rows).collect();
        let width =
            |column: usize| lines.iter().filter_map(|l| l.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let mut out = String::new();
        for line in lines {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(i, (cell, &w))| if i == 0 { format!("{cell:<w$}") } else { format!("{cell:>w$}") })
                .collect();
            out.push_str(cells.join("  ").trim_end());
            out.push('\n');
        }
        out
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = (0..self.head.len()).map(|i| if i == 0 { "---" } else { "---:" }.to_owned()).collect();
        let rows: String = self.rows.iter().map(|r| line(r)).collect();
        line(&self.head) + &line(&rule) + &rows
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn both_forms_of_a_table() {
        let mut t = Table::new(["test", "t/s"]);
        t.row(["pp512", "41.5 ± 0.2"]);
        t.row(["tg1", "7"]);
        assert_eq!(t.text(), "test          t/s\npp512  41.5 ± 0.2\ntg1             7\n");
        assert_eq!(t.markdown(), "| test | t/s |\n| --- | ---: |\n| pp512 | 41.5 ± 0.2 |\n| tg1 | 7 |\n");
    }
}
