// Package probe checks whether a CSI driver is ready, with one call for all
// requests that arrive at the same time.
//
// It is for health checks. A component that must not start before its driver
// is ready uses csiclient.Client.Wait.
package probe

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
)

// ErrNotReady is the error for a driver that answers Probe with ready=false.
var ErrNotReady = errors.New("CSI driver answers that it is not ready")

// logEvery is the interval of log lines with the same problem.
const logEvery = 30 * time.Second

// Driver is the driver to probe: a csiclient.Client.
type Driver interface {
	// Probe reports whether the driver is ready, within a deadline of its own.
	Probe(ctx context.Context) (bool, error)
	// DriverName returns the driver's name, within a deadline of its own.
	DriverName(ctx context.Context) (string, error)
}

// Config says which driver to probe and how long a result is valid.
type Config struct {
	// Driver is the driver to probe.
	Driver Driver
	// MaxAge is how long a result answers further requests.
	MaxAge time.Duration
	// Grace is how long after New a driver that was never ready counts as healthy.
	Grace time.Duration
	// Named is called with the driver's name once it is known. It may be nil.
	Named func(string)
	// Registerer receives the metrics of the last result.
	Registerer prometheus.Registerer
}

// Answer is the last result of Probe.
type Answer struct {
	// Driver is its name, empty before it is known.
	Driver string `json:"driver,omitempty"`
	// Asked is when the answer came, zero before the first.
	Asked time.Time `json:"asked,omitzero"`
	// Ready is whether the driver was ready then.
	Ready bool `json:"ready"`
	// Problem is the reason if it was not.
	Problem string `json:"problem,omitempty"`
}

// Prober probes one driver. It is safe for concurrent use.
type Prober struct {
	cfg     Config
	started time.Time
	asking  singleflight.Group
	result  prometheus.Gauge
	success prometheus.Gauge

	mu        sync.Mutex
	log       csiclient.WaitLog
	last      error
	answer    Answer
	everReady bool
}

// New returns a prober that has not called the driver yet.
func New(cfg Config) *Prober {
	p := &Prober{
		cfg:     cfg,
		started: time.Now(),
		log:     csiclient.WaitLog{Every: logEvery},
		result: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_liveness_probe_last_result",
			Help: "Result of the last Probe call to the CSI driver: 1 for ready, 0 for not ready or no answer.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_liveness_probe_last_success_timestamp_seconds",
			Help: "Time at which the CSI driver was last ready, in seconds since 1970; 0 if it never was.",
		}),
	}
	cfg.Registerer.MustRegister(p.result, p.success)
	return p
}

// Check returns nil if the driver is ready. It calls Probe, unless the last
// result is recent enough or a call is in progress. The call goes on when ctx
// ends, because other requests may be waiting for it.
func (p *Prober) Check(ctx context.Context) error {
	if err, ok := p.fresh(time.Now()); ok {
		return p.lenient(err)
	}
	_, err, _ := p.asking.Do("", func() (any, error) {
		return nil, p.ask(context.WithoutCancel(ctx))
	})
	return p.lenient(err)
}

// Answer returns the last result, for people to read.
func (p *Prober) Answer() Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer
}

// fresh returns the last result, if it is recent enough.
func (p *Prober) fresh(now time.Time) (error, bool) { //nolint:revive // the result is an error, or nil
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, !p.answer.Asked.IsZero() && now.Sub(p.answer.Asked) < p.cfg.MaxAge
}

// lenient ignores the error of a driver that has not started yet.
func (p *Prober) lenient(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.everReady && time.Since(p.started) < p.cfg.Grace {
		return nil
	}
	return err
}

func (p *Prober) ask(ctx context.Context) error {
	ready, err := p.cfg.Driver.Probe(ctx)
	if err == nil && !ready {
		err = ErrNotReady
	}
	if p.record(time.Now(), err) {
		klog.FromContext(ctx).Info("Health of the CSI driver", logging.KeyReady, err == nil, logging.KeyReason, problem(err))
	}
	if err == nil && p.Answer().Driver == "" {
		p.name(ctx)
	}
	return err
}

// name reads the driver's name; if that fails, the next Check tries again.
func (p *Prober) name(ctx context.Context) {
	name, err := p.cfg.Driver.DriverName(ctx)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Reading the CSI driver's name failed", logging.KeyReason, err.Error())
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer.Driver = name
	if p.cfg.Named != nil {
		p.cfg.Named(name)
	}
}

// record stores a result and reports whether to log it: when health has changed,
// and a lasting problem from time to time.
func (p *Prober) record(now time.Time, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := err == nil && !p.answer.Ready || err != nil && p.log.Due(problem(err))
	p.last = err
	p.answer.Asked, p.answer.Ready, p.answer.Problem = now, err == nil, problem(err)
	p.result.Set(0)
	if err == nil {
		p.everReady = true
		p.result.Set(1)
		p.success.Set(float64(now.UnixNano()) / float64(time.Second))
	}
	return due
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
