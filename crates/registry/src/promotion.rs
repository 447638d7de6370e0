//! What a channel's policy demands of a version. Pure: everything that decides is handed in.

use crate::error::shown;
use crate::gate_report::{GateReport, Verdict};
use crate::judge::JudgeReport;
use crate::lock::ModelLock;
use crate::manifest::{Kind, Manifest, Role, Version};
use crate::policy::{KeyRole, Policy, Rules};
use crate::record::{Evidence, GateEvidence};
use crate::redteam::{self, MAX_FAILURES, Receipt};
use crate::refusal::Refusal;

/// The documents that a version is judged by. `Err` holds why one could not be read.
pub(crate) struct Documents {
    pub(crate) gate_report: Option<Result<GateReport, String>>,
    pub(crate) redteam: Option<Result<Receipt, String>>,
    pub(crate) judge: Option<Result<JudgeReport, String>>,
}

struct Check<'a> {
    rules: &'a Rules,
    version: &'a Version,
    refusals: Vec<Refusal>,
}

impl Check<'_> {
    fn refuse(&mut self, code: &'static str, message: impl Into<String>) {
        self.refusals.push(Refusal { code, message: message.into() });
    }

    /// Whether a report about the model file `file` is about this version's model.
    fn model_file(&mut self, what: &str, file: &crate::Digest) {
        let artifact = self.version.artifact().sha256;
        match (self.version.kind, &self.rules.model) {
            (Kind::Model, _) if *file != artifact => self.refuse(
                "other-model",
                format!("the {what} is about the model file {file}; this version's is {artifact}"),
            ),
            (Kind::Cartridge, Some(model)) if !model.files.contains(file) => self.refuse(
                "other-model",
                format!(
                    "the {what} is about the model file {file}, which is none of the {} that the policy names for {}",
                    model.files.len(),
                    shown(&model.lock.model_id)
                ),
            ),
            _ => {}
        }
    }

    /// Whether a report about the cartridge `file` is about this version.
    fn cartridge_file(&mut self, what: &str, file: Option<&crate::Digest>) {
        let artifact = self.version.artifact().sha256;
        match (self.version.kind, file) {
            (Kind::Cartridge, Some(file)) if *file == artifact => {}
            (Kind::Model, None) => {}
            (_, found) => {
                let found = found.map_or("no cartridge".to_owned(), |d| format!("the cartridge {d}"));
                self.refuse(
                    "other-artifact",
                    format!("the {what} is about {found}; this version's file is {artifact}"),
                );
            }
        }
    }

    fn gates(&mut self, report: Option<Result<GateReport, String>>) -> Vec<GateEvidence> {
        let rules = self.rules;
        if rules.gates.is_empty() {
            return Vec::new();
        }
        let report = match report {
            None => {
                self.refuse("no-gate-report", format!("no gate report; the policy demands {}", rules.gates.join(", ")));
                return Vec::new();
            }
            Some(Err(problem)) => {
                self.refuse("bad-gate-report", problem);
                return Vec::new();
            }
            Some(Ok(report)) => report,
        };
        match &report.model {
            None => self.refuse("other-model", "the gate report is about no model"),
            Some(model) => {
                self.model_file("gate report", &model.file_hash);
                if model.arch_hash != self.version.model.model_arch_hash {
                    let (found, own) = (model.arch_hash, self.version.model.model_arch_hash);
                    self.refuse(
                        "other-model",
                        format!("the gate report has model_arch_hash {found}; this version's is {own}"),
                    );
                }
            }
        }
        if report.quick && !rules.quick {
            self.refuse("quick", "the gate report is of a quick run; the policy demands a full one");
        }
        let artifact = self.version.artifact().sha256;
        let named: Vec<_> =
            report.gates.iter().flat_map(|g| &g.inputs).filter(|i| i.name == "cartridge").map(|i| i.hash).collect();
        if let Some(other) = named.iter().find(|h| **h != artifact)
            && self.version.kind == Kind::Cartridge
        {
            self.refuse(
                "other-artifact",
                format!("the gate report is about the cartridge {other}; this version's file is {artifact}"),
            );
        }
        if rules.gates_name_artifact && self.version.kind == Kind::Cartridge && named.is_empty() {
            self.refuse("other-artifact", "no gate of the report had this cartridge as an input");
        }
        let mut evidence = Vec::new();
        for id in &rules.gates {
            let Some(gate) = report.gates.iter().find(|g| &g.id == id) else {
                self.refuse("gate", format!("gate {id} was not run; the policy demands PASS"));
                continue;
            };
            let verdict = gate.verdict();
            if verdict != Verdict::Pass {
                let word = if verdict == Verdict::Fail { "FAIL" } else { "UNKNOWN" };
                let counts = gate.checks;
                self.refuse(
                    "gate",
                    format!(
                        "gate {id} is {word} ({} planned, {} executed, {} failed); the policy demands PASS",
                        counts.planned, counts.executed, counts.failed
                    ),
                );
            }
            evidence.push(GateEvidence { id: id.clone(), verdict });
        }
        evidence
    }

    fn redteam(
        &mut self,
        receipt: Option<Result<Receipt, String>>,
        current: Option<&redteam::Evidence>,
    ) -> Option<redteam::Evidence> {
        let rule = self.rules.redteam.as_ref()?;
        let receipt = match receipt {
            None => {
                self.refuse("no-redteam", "no red-team receipt; the policy demands one");
                return None;
            }
            Some(Err(problem)) => {
                self.refuse("bad-redteam", problem);
                return None;
            }
            Some(Ok(receipt)) => receipt,
        };
        self.model_file("red-team receipt", &receipt.model.sha256);
        self.cartridge_file("red-team receipt", receipt.cartridge.as_ref().map(|c| &c.sha256));
        match self.version.file(Role::RedteamSuite) {
            None => self.refuse("no-suite", "the red-team suite is not among the version's files"),
            Some(suite) if suite.sha256 != receipt.suite.sha256 => self.refuse(
                "other-suite",
                format!("the receipt is of the suite {}; the version ships {}", receipt.suite.sha256, suite.sha256),
            ),
            Some(_) => {}
        }
        if receipt.failures.len() > MAX_FAILURES {
            let failed = receipt.failures.len();
            self.refuse(
                "redteam-failed",
                format!("{failed} cases failed; more than {MAX_FAILURES} are never promoted"),
            );
            return None;
        }
        let sha256 = self.version.file(Role::Redteam)?.sha256;
        let evidence = receipt.evidence(sha256);
        if evidence.counts.total == 0 {
            self.refuse("redteam-failed", "the red-team run had no cases; that shows nothing");
        }
        if evidence.counts.failed > rule.max_failed {
            self.refuse(
                "redteam-failed",
                format!(
                    "{} of {} cases failed; the policy allows {}",
                    evidence.counts.failed, evidence.counts.total, rule.max_failed
                ),
            );
        }
        if let Some(suite) = rule.suite
            && suite != evidence.suite.sha256
        {
            self.refuse(
                "other-suite",
                format!("the receipt is of the suite {}; the policy demands {suite}", evidence.suite.sha256),
            );
        }
        if let Some(current) = current {
            if current.suite.sha256 == evidence.suite.sha256 {
                for message in evidence.drop_against(current) {
                    self.refuse("redteam-drop", message);
                }
            } else if rule.suite != Some(evidence.suite.sha256) {
                // Neither better nor worse: unknown, and unknown is not good enough.
                self.refuse(
                    "redteam-incomparable",
                    format!(
                        "the receipt is of the suite {} and the current version's of {}: they cannot be compared. Run \
                         the current one's suite, or have the operator name the new suite in the policy",
                        evidence.suite.sha256, current.suite.sha256
                    ),
                );
            }
        }
        Some(evidence)
    }

    fn judge(&mut self, report: Option<Result<JudgeReport, String>>) {
        if !self.rules.judge {
            return;
        }
        match report {
            None => self.refuse("no-judge", "no judge's report; the policy demands one"),
            Some(Err(problem)) => self.refuse("bad-judge", problem),
            Some(Ok(report)) => {
                self.model_file("judge's report", &report.model.sha256);
                self.cartridge_file("judge's report", Some(&report.cartridge.sha256));
                if report.verdict != Verdict::Pass {
                    self.refuse(
                        "judge",
                        format!("the judge's verdict is {:?}; the policy demands PASS", report.verdict),
                    );
                }
            }
        }
    }
}

/// The lock and the signature: what is asked of every version that a channel points at, also after a rollback.
/// `under` as for [`Policy::key_for`].
pub(crate) fn fitness(policy: &Policy, manifest: &Manifest, under: Option<u64>) -> Vec<Refusal> {
    let version = manifest.version();
    let rules = policy.rules();
    let mut check = Check { rules, version, refusals: Vec::new() };
    match policy.key_for(manifest.key(), KeyRole::Sign, under) {
        Err(problem) => check.refuse("signature", problem),
        Ok(key) => {
            if let Err(problem) = manifest.verify(key) {
                check.refuse("signature", problem.to_string());
            }
        }
    }
    if version.kind != rules.kind {
        let (found, own) = (version.kind.role().as_str(), rules.kind.role().as_str());
        check.refuse("kind", format!("the version is a {found}; the channel carries {own}s"));
    }
    let differences: Vec<(&str, String, String)> =
        rules.model.as_ref().map_or(Vec::new(), |model| ModelLock::differences(&version.model, &model.lock));
    for (field, found, own) in differences {
        check.refuse("lock", format!("the version is locked to {field} {found}; the channel's model has {own}"));
    }
    check.refusals
}

/// Everything a promotion asks. The evidence is complete only if there is no refusal.
pub(crate) fn judge(
    policy: &Policy,
    manifest: &Manifest,
    documents: Documents,
    current: Option<&Evidence>,
) -> (Evidence, Vec<Refusal>) {
    let version = manifest.version();
    let mut check = Check { rules: policy.rules(), version, refusals: fitness(policy, manifest, None) };
    let gates = check.gates(documents.gate_report);
    let redteam = check.redteam(documents.redteam, current.and_then(|c| c.redteam.as_ref()));
    check.judge(documents.judge);
    let evidence = Evidence {
        gates,
        gate_report: version.file(Role::GateReport).map(|f| f.sha256),
        redteam,
        judge: version.file(Role::Judge).map(|f| f.sha256),
    };
    (evidence, check.refusals)
}
