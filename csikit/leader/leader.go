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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/flagset"
	"github.com/longshore-csi/longshore/csikit/kube"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// jitter is the maximum random part that is added to a pause.
const jitter = 0.2

const (
	// retryFactor is how many times more often than usual the Lease is renewed after a failure: the
	// deadline counts from the last success, and is only two usual periods long.
	retryFactor = 5
	// shortCall is the minimum timeout of a call, unless the deadline is nearer.
	shortCall = time.Second
)

// ErrLost is returned by Run, and is the cause of the end of the leader's context, when the
// Lease could not be renewed or another instance holds it.
var ErrLost error = lostError{}

// ErrUnused is returned by a function that Run has called, if its context has ended before it has done anything: the change of the holder is taken back, so that the next leader
// follows the one before. It is no error of Run.
var ErrUnused = errors.New("the leadership was not used")

// lostError is ErrLost. Abort makes reconcile.Controller cancel running work instead of finishing it.
type lostError struct{}

// Error implements error.
func (lostError) Error() string { return "leadership is lost" }

// Abort reports that running work must not be finished.
func (lostError) Abort() bool { return true }

// Metrics receives the state of the election; kubemetrics.Leader implements it.
type Metrics interface {
	// On records that this instance leads.
	On(name string)
	// Off records that this instance does not lead.
	Off(name string)
	// SlowpathExercised counts a renewal that had to read the Lease first, as another writer had changed it.
	SlowpathExercised(name string)
}

// Recorder records a change of the leader; events.Recorder implements it.
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
	// Identity of this instance; it must be unique among the competing instances. Default: the pod's name, by
	// $POD_NAME or the service account's token; outside of pods the host's name.
	Identity string
	// Labels are put on the Lease, beside those it has.
	Labels map[string]string
	// LeaseDuration, RenewDeadline and RetryPeriod are explained at flagset.LeaderElection. Defaults 15s, 10s, 5s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Metrics receives the state of the election. nil: no metrics.
	Metrics Metrics
	// Health receives the time until which the Lease is valid. nil: no health check.
	Health *Health
	// Recorder records a new leader as an event on the Lease. nil: no events.
	Recorder Recorder
}

// Term is one leadership: the UID of the Lease, and its spec.leaseTransitions, which each new holder counts up, whatever elector it uses.
type Term struct {
	Lease       types.UID
	Transitions int32
}

// TermOf returns the term in which a function that Run has called leads; ok is false in any other context.
func TermOf(ctx context.Context) (term Term, ok bool) {
	term, ok = ctx.Value(termKey{}).(Term)
	return term, ok
}

// Resign releases the Lease before the function that Run has called returns; then it calls nothing that must not be called beside another leader. ctx is the
// context of that function, or made from it; with any other, Resign does nothing.
func Resign(ctx context.Context) {
	if resign, ok := ctx.Value(resignKey{}).(func()); ok {
		resign()
	}
}

// termKey and resignKey are the keys of the Term, and of what releases the Lease, in the context of the leader.
type termKey struct{}

type resignKey struct{}

// Run waits until this instance is elected, then calls lead and returns its error. lead is called at most once.
//
// The context of lead ends when ctx does, or, with cause ErrLost, when the Lease is lost; then Run
// returns ErrLost once lead has returned. The Lease is kept as long as lead runs, or until Resign, and released
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
	return e.runWhileLeading(ctx, lead)
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
	cfg.Namespace = Namespace(cfg.Namespace)
	if cfg.Identity == "" {
		cfg.Identity = identity(os.Getenv("POD_NAME"), serviceAccount+"token")
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

// acquire tries to acquire the Lease until it succeeds (true) or ctx is done (false).
func (e *elector) acquire(ctx context.Context) bool {
	for ctx.Err() == nil {
		// If the end of ctx cut an attempt short, the Lease might have a holder that has ended.
		if err := e.attempt(context.WithoutCancel(ctx), e.cfg.RenewDeadline); err == nil {
			if ctx.Err() == nil {
				return true
			}
			e.unused = true
			e.release(ctx)
			return false
		} else if !errors.Is(err, errHeld) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Lease cannot be acquired, trying again")
			wait(ctx, nil, e.pause())
			continue
		}
		e.standBy(ctx)
	}
	return false
}

// pause is the time between two attempts, with jitter.
func (e *elector) pause() time.Duration {
	return e.cfg.RetryPeriod + time.Duration(jitter*rand.Float64()*float64(e.cfg.RetryPeriod)) //nolint:gosec // no secret
}

// runWhileLeading runs lead beside the renewal of the Lease, then releases the Lease.
func (e *elector) runWhileLeading(ctx context.Context, lead func(context.Context) error) error {
	gone, finished := make(chan struct{}), make(chan struct{})
	var lost error
	var renewal sync.WaitGroup
	resign := sync.OnceFunc(func() {
		defer e.off()
		close(finished)
		renewal.Wait()
		if lost == nil {
			e.release(ctx)
		}
	})
	term := Term{Lease: e.lease.UID, Transitions: e.seen.transitions}
	leading := context.WithValue(context.WithValue(reconcile.WithAbort(ctx, gone), termKey{}, term), resignKey{}, resign)
	leadCtx, cancel := context.WithCancelCause(leading)
	defer cancel(nil)
	renewal.Go(func() {
		// The Lease outlives ctx: lead may still be finishing its work.
		if lost = e.renew(context.WithoutCancel(ctx), finished); lost != nil {
			cancel(lost)
			close(gone)
		}
	})
	err := func() error {
		defer resign()
		err := lead(leadCtx)
		if !errors.Is(err, ErrUnused) {
			return err
		}
		e.unused = true // which only the release reads
		return nil
	}()
	if lost != nil {
		return errors.Join(lost, ignoreCanceled(err))
	}
	return err
}

// ignoreCanceled drops errors that only say that the context ended.
func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// renew keeps the Lease until finished is closed; it returns ErrLost when it cannot.
func (e *elector) renew(ctx context.Context, finished <-chan struct{}) error {
	pause := e.renewInterval()
	for wait(ctx, finished, pause) {
		left := e.left()
		if left <= 0 {
			return fmt.Errorf("renew Lease within %v: %w", e.cfg.RenewDeadline, ErrLost)
		}
		// No call may use up all the time that is left for retries.
		err := e.attempt(ctx, min(left, max(left/2, shortCall)))
		switch {
		case errors.Is(err, errHeld):
			return fmt.Errorf("renew Lease, which %q holds now: %w", e.seen.holder, ErrLost)
		case err != nil:
			klog.FromContext(ctx).Error(err, "Lease cannot be renewed, trying again")
			pause = min(e.pause()/retryFactor, e.left())
		default:
			pause = e.renewInterval()
		}
	}
	return nil
}

// renewInterval is the pause after a success. It leaves time for another attempt even if the last answer took long.
func (e *elector) renewInterval() time.Duration { return min(e.pause(), e.left()*3/4) }

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

// Namespace returns the namespace that Run takes for a configured one, which may be empty; see Config.Namespace.
func Namespace(configured string) string {
	if configured != "" {
		return configured
	}
	return namespace(os.Getenv("POD_NAMESPACE"), serviceAccount+"namespace")
}

// namespace returns the default namespace of the Lease.
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

// SanitizeName makes a name for a Lease from the name of a driver, as the replaced components do: all characters but
// letters, digits and dashes become dashes, and an X follows a dash at the end.
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
