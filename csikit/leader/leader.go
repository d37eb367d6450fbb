package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// jitter is the part by which pauses are made longer at random, at most.
const jitter = 0.2

const (
	// hurry is how many times more often than usual the Lease is renewed after a failure: the
	// deadline counts from the last success, and is only two usual periods long.
	hurry = 5
	// shortCall is what a call gets at least, unless the deadline is nearer.
	shortCall = time.Second
)

// ErrLost is returned by Run, and is the cause of the end of the leader's context, when the
// Lease could not be renewed or somebody else has it.
var ErrLost error = lostError{}

// lostError is ErrLost. Abort tells reconcile.Controller not to finish what is running.
type lostError struct{}

// Error implements error.
func (lostError) Error() string { return "leadership is lost" }

// Abort tells that work must not be finished.
func (lostError) Abort() bool { return true }

// Metrics learns who leads; kubemetrics.Leader implements it.
type Metrics interface {
	// On tells that this instance leads.
	On(name string)
	// Off tells that it does not.
	Off(name string)
}

// Recorder learns of a change of the leader; events.Recorder implements it.
type Recorder interface {
	Normal(obj runtime.Object, reason, message string)
}

// Config of an election. Client and Name are required.
type Config struct {
	// Client reads and writes the Lease.
	Client kube.Client
	// Namespace and Name of the Lease. Default of the namespace: $POD_NAMESPACE, else the namespace of the pod's service
	// account, else "default". For the name of a driver's Lease see SanitizeName.
	Namespace, Name string
	// Identity of this instance; it must be unique among those that compete. Default: the host's name.
	Identity string
	// Labels are put on the Lease, beside those it has.
	Labels map[string]string
	// LeaseDuration, RenewDeadline and RetryPeriod are explained at flagset.LeaderElection. Defaults 15s, 10s, 5s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Metrics learns who leads. nil: nobody does.
	Metrics Metrics
	// Health learns how long the Lease is valid. nil: nobody does.
	Health *Health
	// Recorder tells of a new leader on the Lease. nil: nobody does.
	Recorder Recorder
}

// Run waits until this instance is elected, then calls lead and returns its error. lead is called at most once.
//
// The context of lead ends when ctx does, or, with cause ErrLost, when the Lease is lost; then Run
// returns ErrLost once lead has returned. The Lease is kept as long as lead runs, and released
// afterwards. If it is lost while lead finishes its work after the end of ctx, the running work of a
// reconcile.Controller is cancelled all the same. When ctx ends before the election, Run returns nil.
func Run(ctx context.Context, cfg Config, lead func(ctx context.Context) error) error {
	setDefaults(&cfg)
	if err := validate(cfg, lead); err != nil {
		return fmt.Errorf("elect a leader by Lease %s/%s: %w", cfg.Namespace, cfg.Name, err)
	}
	logger := klog.FromContext(ctx).WithValues(logging.KeyLease, klog.KRef(cfg.Namespace, cfg.Name), logging.KeyIdentity, cfg.Identity)
	ctx = klog.NewContext(ctx, logger)
	e := &elector{cfg: cfg}
	e.off()
	if !e.acquire(ctx) {
		return nil
	}
	logger.Info("Became leader")
	e.on()
	defer e.off()
	return e.reign(ctx, lead)
}

func setDefaults(cfg *Config) {
	defaults := flagset.NewLeaderElection()
	if cfg.LeaseDuration == 0 {
		cfg.LeaseDuration = defaults.LeaseDuration
	}
	if cfg.RenewDeadline == 0 {
		cfg.RenewDeadline = defaults.RenewDeadline
	}
	if cfg.RetryPeriod == 0 {
		cfg.RetryPeriod = defaults.RetryPeriod
	}
	if cfg.Namespace == "" {
		cfg.Namespace = namespace(os.Getenv("POD_NAMESPACE"), serviceAccountNamespace)
	}
	if cfg.Identity == "" {
		cfg.Identity, _ = os.Hostname()
	}
	if cfg.Health == nil {
		cfg.Health = &Health{}
	}
}

func validate(cfg Config, lead func(context.Context) error) error {
	var errs []error
	if cfg.Client == nil || lead == nil {
		errs = append(errs, errors.New("client and the leader's function must not be nil"))
	}
	if cfg.Name == "" {
		errs = append(errs, errors.New("name of the Lease must not be empty"))
	}
	if cfg.Identity == "" {
		errs = append(errs, errors.New("identity must not be empty, and the host has no name"))
	}
	durations := flagset.LeaderElection{
		Enabled: true, Labels: cfg.Labels,
		LeaseDuration: cfg.LeaseDuration, RenewDeadline: cfg.RenewDeadline, RetryPeriod: cfg.RetryPeriod,
	}
	errs = append(errs, durations.Validate())
	return errors.Join(errs...)
}

func (e *elector) on() {
	if e.cfg.Metrics != nil {
		e.cfg.Metrics.On(e.cfg.Name)
	}
}

func (e *elector) off() {
	e.cfg.Health.clear()
	if e.cfg.Metrics != nil {
		e.cfg.Metrics.Off(e.cfg.Name)
	}
}

// acquire tries to get the Lease until it has it (true) or ctx is done (false).
func (e *elector) acquire(ctx context.Context) bool {
	for ctx.Err() == nil {
		if err := e.attempt(ctx, e.cfg.RenewDeadline); err == nil {
			if ctx.Err() == nil {
				return true
			}
			e.release(ctx)
			return false
		} else if !errors.Is(err, errHeld) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Lease cannot be acquired, trying again")
		}
		wait(ctx, nil, e.pause())
	}
	return false
}

// pause is the time between two attempts, a little different each time.
func (e *elector) pause() time.Duration {
	return e.cfg.RetryPeriod + time.Duration(jitter*rand.Float64()*float64(e.cfg.RetryPeriod)) //nolint:gosec // no secret
}

// reign runs lead beside the renewal of the Lease, and tidies up behind it.
func (e *elector) reign(ctx context.Context, lead func(context.Context) error) error {
	gone := make(chan struct{})
	leadCtx, cancel := context.WithCancelCause(reconcile.WithAbort(ctx, gone))
	defer cancel(nil)
	finished := make(chan struct{})
	var lost error
	var renewal sync.WaitGroup
	renewal.Go(func() {
		// The Lease outlives ctx: lead may still be finishing its work.
		if lost = e.renew(context.WithoutCancel(ctx), finished); lost != nil {
			cancel(lost)
			close(gone)
		}
	})
	err := func() error {
		defer renewal.Wait()
		defer close(finished)
		return lead(leadCtx)
	}()
	if lost != nil {
		return errors.Join(lost, unlessCanceled(err))
	}
	e.release(ctx)
	return err
}

// unlessCanceled drops errors that only say that the context ended.
func unlessCanceled(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// renew keeps the Lease until finished is closed; it returns ErrLost when it cannot.
func (e *elector) renew(ctx context.Context, finished <-chan struct{}) error {
	pause := e.rest()
	for wait(ctx, finished, pause) {
		left := e.left()
		if left <= 0 {
			return fmt.Errorf("renew Lease within %v: %w", e.cfg.RenewDeadline, ErrLost)
		}
		// No call may use up all the time that is left for others.
		err := e.attempt(ctx, min(left, max(left/2, shortCall)))
		switch {
		case errors.Is(err, errHeld):
			return fmt.Errorf("renew Lease, which %q holds now: %w", e.seen.holder, ErrLost)
		case err != nil:
			klog.FromContext(ctx).Error(err, "Lease cannot be renewed, trying again")
			pause = min(e.pause()/hurry, e.left())
		default:
			pause = e.rest()
		}
	}
	return nil
}

// rest is the pause after a success. The answer may have been long on its way, and the pause leaves time for
// another attempt all the same.
func (e *elector) rest() time.Duration { return min(e.pause(), e.left()*3/4) }

// left is the time until a renewal would come too late.
func (e *elector) left() time.Duration { return time.Until(e.renewed.Add(e.cfg.RenewDeadline)) }

// wait pauses; it returns false when ctx or other ends first.
func wait(ctx context.Context, other <-chan struct{}, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-other:
	}
	return false
}

// serviceAccountNamespace is where a pod finds the namespace it is in.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespace returns where the Lease belongs when nothing says.
func namespace(env, file string) string {
	if env != "" {
		return env
	}
	if data, err := os.ReadFile(file); err == nil {
		if ns := strings.TrimSpace(string(data)); ns != "" {
			return ns
		}
	}
	return "default"
}

// SanitizeName makes a name for a Lease from that of a driver, as the replaced helpers do: all but
// letters, digits and dashes become dashes, and a name does not end in one.
func SanitizeName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, name)
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}
