// Package probe asks a CSI driver whether it is ready, for many who want to
// know at the same time.
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

	"github.com/longshore-csi/longshore/csikit/logging"
)

// ErrNotReady is what a driver means that answers Probe with ready=false.
var ErrNotReady = errors.New("CSI driver answers that it is not ready")

// Driver is who is asked: a csiclient.Client.
type Driver interface {
	// Probe reports whether the driver is ready, within a deadline of its own.
	Probe(ctx context.Context) (bool, error)
	// DriverName returns the driver's name, within a deadline of its own.
	DriverName(ctx context.Context) (string, error)
}

// Config says whom to ask and for how long an answer is good.
type Config struct {
	// Driver is asked.
	Driver Driver
	// MaxAge is how long an answer is given to others who ask.
	MaxAge time.Duration
	// Grace is how long after New a driver that was never ready counts as healthy.
	Grace time.Duration
	// Named is told the driver's name once it is known. It may be nil.
	Named func(string)
	// Registerer receives the metrics of the last answer.
	Registerer prometheus.Registerer
}

// Answer is what the driver said last.
type Answer struct {
	// Driver is its name, empty before it is known.
	Driver string `json:"driver,omitempty"`
	// Asked is when the answer came, zero before the first.
	Asked time.Time `json:"asked"`
	// Ready is whether the driver was ready then.
	Ready bool `json:"ready"`
	// Problem says why not.
	Problem string `json:"problem,omitempty"`
}

// Prober asks. It is safe for concurrent use.
type Prober struct {
	cfg     Config
	started time.Time
	asking  singleflight.Group
	result  prometheus.Gauge
	success prometheus.Gauge

	mu        sync.Mutex
	last      error
	answer    Answer
	everReady bool
}

// New returns a prober that has not asked yet.
func New(cfg Config) *Prober {
	p := &Prober{
		cfg:     cfg,
		started: time.Now(),
		result: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_liveness_probe_last_result",
			Help: "Last answer of the CSI driver to Probe: 1 ready, 0 not ready or no answer.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "csi_liveness_probe_last_success_timestamp_seconds",
			Help: "When the CSI driver was last ready, in seconds since 1970; 0 for never.",
		}),
	}
	cfg.Registerer.MustRegister(p.result, p.success)
	return p
}

// Check returns nil if the driver is ready. It asks the driver, unless an
// answer is fresh enough or a question is under way; a question once asked is
// not withdrawn when ctx ends, for others wait for it.
func (p *Prober) Check(ctx context.Context) error {
	if err, ok := p.fresh(time.Now()); ok {
		return p.lenient(err)
	}
	_, err, _ := p.asking.Do("", func() (any, error) {
		return nil, p.ask(context.WithoutCancel(ctx))
	})
	return p.lenient(err)
}

// Answer returns what the driver said last, for people to read.
func (p *Prober) Answer() Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.answer
}

// fresh returns the last answer, if it is good still.
func (p *Prober) fresh(now time.Time) (error, bool) { //nolint:revive // the answer is an error, or nil
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, !p.answer.Asked.IsZero() && now.Sub(p.answer.Asked) < p.cfg.MaxAge
}

// lenient forgives a driver that has not come up yet.
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
		klog.FromContext(ctx).Info("CSI driver changed its health", logging.KeyReady, err == nil, logging.KeyReason, problem(err))
	}
	if err == nil && p.Answer().Driver == "" {
		p.name(ctx)
	}
	return err
}

// name asks for the driver's name; it can wait for the next answer if that fails.
func (p *Prober) name(ctx context.Context) {
	name, err := p.cfg.Driver.DriverName(ctx)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("CSI driver did not tell its name", logging.KeyReason, err.Error())
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer.Driver = name
	if p.cfg.Named != nil {
		p.cfg.Named(name)
	}
}

// record keeps an answer, and reports whether it differs from the one before.
func (p *Prober) record(now time.Time, err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := p.answer.Asked.IsZero() || problem(p.last) != problem(err)
	p.last = err
	p.answer.Asked, p.answer.Ready, p.answer.Problem = now, err == nil, problem(err)
	p.result.Set(0)
	if err == nil {
		p.everReady = true
		p.result.Set(1)
		p.success.Set(float64(now.UnixNano()) / float64(time.Second))
	}
	return changed
}

func problem(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
