package stats

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-csi/longshore/kubeletplugin/volume"
)

// gauge is a metric with the name and the labels of a kubelet's.
type gauge struct {
	desc  *prometheus.Desc
	value func(r *volume.Usage) (float64, bool)
}

// gauges are the metrics of a volume with a claim.
func (c *Collector) gauges() []gauge {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubelet_volume_stats_"+name, help, []string{"namespace", "persistentvolumeclaim"}, nil)
	}
	of := func(name, help string, space func(*volume.Usage) *volume.Space, number func(*volume.Space) int64) gauge {
		return gauge{describe(name, help), func(r *volume.Usage) (float64, bool) {
			if space(r) == nil {
				return 0, false
			}
			return float64(number(space(r))), true
		}}
	}
	bytes, inodes := func(r *volume.Usage) *volume.Space { return r.Bytes }, func(r *volume.Usage) *volume.Space { return r.Inodes }
	capacity, used, available := func(s *volume.Space) int64 { return s.Capacity }, func(s *volume.Space) int64 { return s.Used }, func(s *volume.Space) int64 { return s.Available }
	all := []gauge{
		of("capacity_bytes", "Size of the volume in bytes.", bytes, capacity),
		of("used_bytes", "Used bytes of the volume.", bytes, used),
		of("available_bytes", "Free bytes of the volume.", bytes, available),
		of("inodes", "Number of inodes of the volume.", inodes, capacity),
		of("inodes_used", "Used inodes of the volume.", inodes, used),
		of("inodes_free", "Free inodes of the volume.", inodes, available),
		{describe("health_status_abnormal", "1 if the driver reports a problem of the volume, 0 if it reports none."), func(r *volume.Usage) (float64, bool) {
			if len(r.Conditions) > 0 {
				return 1, r.Health
			}
			return 0, r.Health
		}},
	}
	if c.cfg.Health != nil {
		return all[:len(all)-1]
	}
	return all
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, g := range c.gauges() {
		out <- g.desc
	}
}

// Collect implements prometheus.Collector. A claim that several pods use appears once.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	seen := map[volume.Claim]bool{}
	for _, r := range c.Latest() {
		if r.Claim.Name == "" || seen[r.Claim] {
			continue
		}
		seen[r.Claim] = true
		for _, g := range c.gauges() {
			if value, known := g.value(&r); known {
				out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, r.Claim.Namespace, r.Claim.Name)
			}
		}
	}
}
