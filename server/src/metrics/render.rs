//! Cells to OpenMetrics text, through prometheus-client's encoder (names, types, escaping). One family per [`Metric`],
//! in the order of the enum; every family is listed even while it has no series, so that dashboards can be checked.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit as EncodedUnit};

use super::cells::{Cell, Histogram, Total, seconds};
use super::names::{
    CloseReason, Kind, Labels, Metric, Op, Outcome, PREFIX, Queue, Stage, TicketResult, Tuned, Unit, Warning,
};
use super::{Label, NOT_SEEN, Node, PartitionCells, UNKNOWN, WorkerCells};

/// All metrics of a node as one OpenMetrics document.
pub(super) fn render(node: &Node) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(node.clone()));
    let mut out = String::with_capacity(64 * 1024);
    // Writing to a string fails only if an encoder of ours does, which is a bug of this file.
    text::encode(&mut out, &registry).expect("metrics are encoded into memory");
    out
}

impl Collector for Node {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let partitions: Vec<_> = self.partitions().iter().map(|(id, cells)| (id.clone(), Arc::clone(cells))).collect();
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
            let family = encoder.encode_descriptor(metric.stem(), metric.help(), unit, kind)?;
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
    fn encode(&mut self, node: &Node, partitions: &[(Label, Arc<PartitionCells>)]) -> Result<(), Error> {
        match self.metric.labels() {
            Labels::Partition => partitions.iter().try_for_each(|(id, cells)| self.partition(&id.text, cells)),
            Labels::PartitionNode => partitions.iter().try_for_each(|(id, cells)| self.peers(&id.text, cells)),
            Labels::Tuning => partitions.iter().try_for_each(|(id, cells)| self.tuning(&id.text, cells)),
            _ => self.node(node),
        }
    }

    fn node(&mut self, node: &Node) -> Result<(), Error> {
        let cells = &*node.0;
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
            Metric::BuildInfo => self.encoder.encode_info(&[("version", env!("CARGO_PKG_VERSION"))]),
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
            let number = f64::from_bits(cells.tuning.values[tuned.index()].get());
            self.series(&[id, value, kind], |series| series.encode_gauge(&number))
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
        let kind = self.metric.kind();
        let value = seconds(nanos);
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
