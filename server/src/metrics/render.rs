//! Cells to text, through prometheus-client's encoder (names, types, escaping). One family per [`Metric`], in the order
//! of the enum; every family is listed even while it has no series, so that dashboards can be checked.
//!
//! The encoder writes OpenMetrics. The older format of Prometheus has the same series, and differs in the comments.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use coppice_core::resp::connection::Counted;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as EncodedUnit};

use super::cells::{Cell, Histogram, Total, seconds};
use super::names::{
    Area, CloseReason, Kind, Labels, Metric, Op, Outcome, Queue, Stage, TicketResult, Tuned, Unit, Warning,
};
use super::{Label, NOT_SEEN, Node, PartitionCells, UNKNOWN, WorkerCells};
use crate::process::Process;

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// The text format of Prometheus, 0.0.4.
    Text,
}

impl Format {
    /// The content type of an answer.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of a node as one document.
pub(super) fn render(node: &Node, format: Format) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { node: node.clone(), process: Process::read() }));
    let mut out = String::with_capacity(64 * 1024);
    // Writing to a string fails only if an encoder of ours does, which is a bug of this file.
    text::encode(&mut out, &registry).expect("metrics are encoded into memory");
    match format {
        Format::OpenMetrics => out,
        Format::Text => as_text(&out),
    }
}

/// OpenMetrics in the text format of Prometheus. There a family is named as its series, units have no line, and an info
/// is a gauge.
fn as_text(open_metrics: &str) -> String {
    let mut families = Metric::ALL.iter();
    let mut family = None;
    let mut out = String::with_capacity(open_metrics.len());
    for line in open_metrics.split_inclusive('\n') {
        if !line.starts_with('#') {
            out.push_str(line);
        } else if line.starts_with("# HELP ") {
            family = families.next().map(|&metric| (metric, metric.name() + metric.kind().ending()));
            if let Some((metric, name)) = &family {
                out.extend(["# HELP ", name, " ", metric.help(), "\n"]);
            }
        } else if let Some((metric, name)) = family.as_ref().filter(|_| line.starts_with("# TYPE ")) {
            let kind = match metric.kind() {
                Kind::Counter => "counter",
                Kind::Gauge | Kind::Info => "gauge",
                Kind::Histogram => "histogram",
            };
            out.extend(["# TYPE ", name, " ", kind, "\n"]);
        }
    }
    out
}

/// A node and its process, as they are for one scrape.
#[derive(Debug)]
struct Scrape {
    node: Node,
    process: Process,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let partitions = self.node.partitions();
        let partitions: Vec<_> = partitions.iter().map(|(id, cells)| (id.clone(), Arc::clone(cells))).collect();
        for &metric in Metric::ALL {
            let unit = match metric.unit() {
                Unit::None => None,
                Unit::Seconds => Some(&EncodedUnit::Seconds),
                Unit::Bytes => Some(&EncodedUnit::Bytes),
            };
            let kind = match metric.kind() {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let name = metric.family();
            let family = encoder.encode_descriptor(&name, metric.help(), unit, kind)?;
            Family { metric, encoder: family }.encode(self, &partitions)?;
        }
        Ok(())
    }
}

/// One metric's series under way.
struct Family<'a> {
    metric: Metric,
    encoder: MetricEncoder<'a>,
}

impl Family<'_> {
    fn encode(&mut self, scrape: &Scrape, partitions: &[(Label, Arc<PartitionCells>)]) -> Result<(), Error> {
        match self.metric.labels() {
            Labels::Partition => partitions.iter().try_for_each(|(id, cells)| self.partition(&id.text, cells)),
            Labels::PartitionNode => partitions.iter().try_for_each(|(id, cells)| self.peers(&id.text, cells)),
            Labels::Tuning => partitions.iter().try_for_each(|(id, cells)| self.tuning(&id.text, cells)),
            _ => self.node(scrape),
        }
    }

    fn node(&mut self, scrape: &Scrape) -> Result<(), Error> {
        let (cells, process) = (&*scrape.node.0, &scrape.process);
        let workers = &cells.workers;
        match self.metric {
            Metric::RequestSeconds => Op::ALL.iter().try_for_each(|op| {
                self.histogram(&[op.text()], workers.iter().map(|s| &s.request_seconds[op.index()]))
            }),
            Metric::Requests => Op::ALL.iter().try_for_each(|op| self.requests(workers, *op)),
            Metric::InstanceSeconds => self.histogram(&[], workers.iter().map(|s| &s.instance_seconds)),
            Metric::BatchBytes => self.histogram(&[], workers.iter().map(|s| &s.batch_bytes)),
            Metric::BatchCommands => self.histogram(&[], workers.iter().map(|s| &s.batch_commands)),
            Metric::BatchesClosed => CloseReason::ALL.iter().try_for_each(|reason| {
                self.value(&[reason.text()], sum(workers, |worker| &worker.batches_closed[reason.index()]))
            }),
            Metric::ReplyHoldSeconds => self.histogram(&[], workers.iter().map(|s| &s.reply_hold_seconds)),
            Metric::WorkerStepSeconds => self.histogram(&[], workers.iter().map(|s| &s.worker_step_seconds)),
            Metric::WorkerStepCpuSeconds => self.histogram(&[], workers.iter().map(|s| &s.worker_step_cpu_seconds)),
            Metric::TicketSeconds => self.histogram(&[], workers.iter().map(|s| &s.tickets.seconds)),
            Metric::TicketsInFlight => self.value(&[], sum(workers, |worker| &worker.tickets.in_flight)),
            Metric::MulticastMessages => self.value(&[], sum(workers, |worker| &worker.multicast_messages)),
            Metric::Tickets => TicketResult::ALL.iter().try_for_each(|result| {
                self.value(&[result.text()], sum(workers, |worker| &worker.tickets.results[result.index()]))
            }),
            Metric::StageBusySeconds => Stage::ALL.iter().try_for_each(|stage| {
                let log = if *stage == Stage::Flush { cells.log.busy_nanos.get() } else { 0 };
                self.time(&[stage.text()], log + sum(workers, |worker| &worker.stage_busy_nanos[stage.index()]))
            }),
            Metric::QueueDepth => Queue::ALL.iter().try_for_each(|queue| {
                let log = if *queue == Queue::Log { cells.log.queue_depth.get() } else { 0 };
                self.value(&[queue.text()], log + sum(workers, |worker| &worker.queue_depth[queue.index()]))
            }),
            Metric::DigestMismatches => self.value(&[], cells.digest_mismatches.get()),
            Metric::Rejected => Queue::ALL.iter().try_for_each(|queue| {
                self.value(&[queue.text()], sum(workers, |worker| &worker.rejected[queue.index()]))
            }),
            Metric::LogFlushSeconds => self.histogram(&[], [&cells.log.flush_seconds]),
            Metric::LogFlushRecords => self.histogram(&[], [&cells.log.flush_records]),
            Metric::LogBytes => self.value(&[], cells.log.log_bytes.get()),
            Metric::DiskFreeBytes => self.value(&[], cells.log.disk_free_bytes.get()),
            Metric::ToleratedFailures => match cells.tolerated_failures.load(Relaxed) {
                UNKNOWN => Ok(()),
                nodes => self.encoder.encode_gauge(&nodes),
            },
            Metric::Warning => Warning::ALL
                .iter()
                .try_for_each(|warning| self.value(&[warning.text()], cells.warnings[warning.index()].get())),
            Metric::RespConnections => self.value(&[], cells.resp.connections.get()),
            Metric::RespCommands => Counted::ALL.iter().try_for_each(|result| {
                self.value(&[super::resp::text(*result)], cells.resp.commands[*result as usize].get())
            }),
            Metric::BuildInfo => self.encoder.encode_info(&[("version", env!("CARGO_PKG_VERSION"))]),
            Metric::MemoryBytes => Area::ALL
                .iter()
                .try_for_each(|area| self.value(&[area.text()], sum(workers, |worker| &worker.memory[area.index()]))),
            Metric::RecoveryRatio => self.number(&[], 1.0 - cells.to_recover.get() as f64 / 1_000.0),
            Metric::CertificateExpirySeconds => match cells.certificate_expiry.get() {
                0 => Ok(()),
                ends_at => self.value(&[], ends_at),
            },
            Metric::MemoryLimitBytes => self.value(&[], cells.memory_limit.get()),
            Metric::AllocatorBytes => process.allocator_bytes.map_or(Ok(()), |bytes| self.value(&[], bytes)),
            Metric::ProcessCpuSeconds => self.number(&[], process.cpu_seconds),
            Metric::ProcessOpenFds => self.value(&[], process.open_fds),
            Metric::ProcessMaxFds => process.fds_max.map_or(Ok(()), |max| self.value(&[], max)),
            Metric::ProcessVirtualMemoryBytes => self.value(&[], process.virtual_bytes),
            Metric::ProcessResidentMemoryBytes => self.value(&[], process.resident_bytes),
            Metric::ProcessStartTimeSeconds => self.number(&[], process.start_seconds),
            Metric::ProcessThreads => self.value(&[], process.threads),
            metric => unreachable!("{metric:?} is a metric of a partition"),
        }
    }

    fn requests(&mut self, workers: &[Arc<WorkerCells>], op: Op) -> Result<(), Error> {
        for outcome in Outcome::ALL {
            let total = sum(workers, |worker| &worker.requests[op.index()][outcome.index()]);
            // 96 series, most of which never move: only those that did are shown, `ok` always.
            if total > 0 || *outcome == Outcome::Ok {
                self.value(&[op.text(), outcome.text()], total)?;
            }
        }
        Ok(())
    }

    fn partition(&mut self, id: &str, cells: &PartitionCells) -> Result<(), Error> {
        let cell = match self.metric {
            Metric::CommandsDecided => &cells.commands_decided,
            Metric::InstancesDecided => &cells.instances_decided,
            Metric::WindowInstances => &cells.window_instances,
            Metric::WindowLimit => &cells.window_limit,
            Metric::WindowInstanceSeconds => return self.time(&[id], cells.window_instance_nanos.get()),
            Metric::SpeculationRollbacks => &cells.speculation.rollbacks,
            Metric::SpeculationUndoneCommands => &cells.speculation.undone_commands,
            Metric::SpeculativeInstances => &cells.speculation.instances,
            Metric::LeaderChanges => &cells.leader_changes,
            Metric::PartitionKeys => &cells.keys,
            Metric::PartitionKeysExpiring => &cells.expiry.keys,
            Metric::PartitionKeysExpired => &cells.expiry.expired,
            Metric::PartitionBytes => &cells.bytes,
            Metric::PartitionLeader => &cells.leads,
            Metric::DecidedInstance => &cells.decided_instance,
            Metric::Sessions => &cells.sessions,
            Metric::RepliesHeld => &cells.replies_held,
            metric => unreachable!("{metric:?} is a metric of the node"),
        };
        self.value(&[id], cell.get())
    }

    fn peers(&mut self, id: &str, cells: &PartitionCells) -> Result<(), Error> {
        let peers = cells.peers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for (node, peer) in peers.iter() {
            let instances = peer.instances.get();
            match self.metric {
                _ if instances == NOT_SEEN => {}
                Metric::ReplicaLagInstances => self.value(&[id, &node.text], instances)?,
                _ => self.time(&[id, &node.text], peer.nanos.get())?,
            }
        }
        Ok(())
    }

    fn tuning(&mut self, id: &str, cells: &PartitionCells) -> Result<(), Error> {
        if cells.tuning.known.get() == 0 {
            return Ok(());
        }
        Tuned::ALL.iter().try_for_each(|tuned| {
            let (value, kind) = tuned.labels();
            self.number(&[id, value, kind], f64::from_bits(cells.tuning.values[tuned.index()].get()))
        })
    }

    /// One series of a counter or gauge.
    fn value(&mut self, labels: &[&str], value: u64) -> Result<(), Error> {
        let kind = self.metric.kind();
        self.series(labels, |series| match kind {
            Kind::Counter => series.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => series.encode_gauge(&value),
        })
    }

    /// One series of a counter or gauge in seconds.
    fn time(&mut self, labels: &[&str], nanos: u64) -> Result<(), Error> {
        self.number(labels, seconds(nanos))
    }

    /// One series of a counter or gauge that is no whole number.
    fn number(&mut self, labels: &[&str], value: f64) -> Result<(), Error> {
        let kind = self.metric.kind();
        self.series(labels, |series| match kind {
            Kind::Counter => series.encode_counter::<NoLabelSet, _, f64>(&value, None),
            _ => series.encode_gauge(&value),
        })
    }

    /// One series of a histogram, added up over threads.
    fn histogram<'h>(
        &mut self,
        labels: &[&str],
        histograms: impl IntoIterator<Item = &'h Histogram>,
    ) -> Result<(), Error> {
        let Some(total) = Total::of(histograms) else { return Ok(()) };
        // A dozen operations by 20 buckets would be noise while most of them never ran.
        if !labels.is_empty() && total.count() == 0 {
            return Ok(());
        }
        let buckets: Vec<_> = total.buckets().collect();
        self.series(labels, |series| series.encode_histogram::<NoLabelSet>(total.sum(), total.count(), &buckets, None))
    }

    /// Gives `encode` the encoder of the series with these label values.
    fn series(
        &mut self,
        values: &[&str],
        encode: impl FnOnce(&mut MetricEncoder<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let names = self.metric.labels().names();
        debug_assert_eq!(names.len(), values.len(), "{:?}", self.metric);
        let labels: Vec<(&str, &str)> = names.iter().copied().zip(values.iter().copied()).collect();
        // An empty set of labels would be written as `{}`.
        match labels.as_slice() {
            [] => encode(&mut self.encoder),
            labels => encode(&mut self.encoder.encode_family(&labels)?),
        }
    }
}

fn sum(workers: &[Arc<WorkerCells>], cell: impl Fn(&WorkerCells) -> &Cell) -> u64 {
    workers.iter().map(|worker| cell(worker).get()).sum()
}
