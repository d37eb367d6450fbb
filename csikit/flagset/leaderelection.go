package flagset

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"time"
)

// renewJitter is how much longer than RetryPeriod a randomised retry may take.
const renewJitter = 1.2

// LeaderElection reports whether, and how patiently, instances elect one leader.
type LeaderElection struct {
	// Enabled turns the election on. Without it every instance works.
	Enabled bool
	// Namespace of the Lease. Empty: that of the pod.
	Namespace string
	// LeaseDuration is how long the others wait after the last renewal they saw.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader keeps trying to renew before it gives up.
	RenewDeadline time.Duration
	// RetryPeriod is the pause between two attempts.
	RetryPeriod time.Duration
	// Labels are put on the Lease.
	Labels map[string]string
}

// NewLeaderElection returns the defaults: off, 15s, 10s, 5s.
func NewLeaderElection() LeaderElection {
	return LeaderElection{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 5 * time.Second}
}

// AddFlags registers --leader-election and --leader-election-*.
func (l *LeaderElection) AddFlags(fs *flag.FlagSet) {
	fs.BoolVar(&l.Enabled, "leader-election", l.Enabled, "run with leader election: one instance works, the others stand by")
	fs.StringVar(&l.Namespace, "leader-election-namespace", l.Namespace, "`namespace` of the Lease; empty: that of the pod")
	fs.DurationVar(&l.LeaseDuration, "leader-election-lease-duration", l.LeaseDuration,
		"time after the last renewal of the Lease until another instance may take over")
	fs.DurationVar(&l.RenewDeadline, "leader-election-renew-deadline", l.RenewDeadline,
		"time for which the leader tries to renew the Lease before it stops working")
	fs.DurationVar(&l.RetryPeriod, "leader-election-retry-period", l.RetryPeriod, "interval between attempts to acquire or renew the Lease")
	fs.Var((*labelMap)(&l.Labels), "leader-election-labels", "`labels` of the Lease, as key:value,key:value")
}

// Validate reports durations that could lead to two leaders, and labels that the API would refuse.
// Nothing is checked when the election is off.
func (l *LeaderElection) Validate() error {
	if !l.Enabled {
		return nil
	}
	var errs []error
	if l.RetryPeriod <= 0 {
		errs = append(errs, invalid("leader-election-retry-period", l.RetryPeriod, "must be greater than 0"))
	}
	if float64(l.RenewDeadline) <= renewJitter*float64(l.RetryPeriod) {
		errs = append(errs, invalid("leader-election-renew-deadline", l.RenewDeadline,
			fmt.Sprintf("must be greater than 1.2 times --leader-election-retry-period (%v)", l.RetryPeriod)))
	}
	if l.LeaseDuration <= l.RenewDeadline {
		errs = append(errs, invalid("leader-election-lease-duration", l.LeaseDuration,
			fmt.Sprintf("must be greater than --leader-election-renew-deadline (%v)", l.RenewDeadline)))
	}
	if l.LeaseDuration < time.Second {
		errs = append(errs, invalid("leader-election-lease-duration", l.LeaseDuration, "must be at least 1s, the unit of the Lease"))
	}
	for _, key := range sortedKeys(l.Labels) {
		if rule := labelRule(key, l.Labels[key]); rule != "" {
			errs = append(errs, invalid("leader-election-labels", key+":"+l.Labels[key], rule))
		}
	}
	return errors.Join(errs...)
}

// labelMap is the flag.Value behind --leader-election-labels.
type labelMap map[string]string

// String implements flag.Value; the order is that of the keys.
func (m *labelMap) String() string {
	if m == nil {
		return ""
	}
	parts := make([]string, 0, len(*m))
	for _, key := range sortedKeys(*m) {
		parts = append(parts, key+":"+(*m)[key])
	}
	return strings.Join(parts, ",")
}

// Set implements flag.Value. It replaces what was set before, as upstream does.
func (m *labelMap) Set(text string) error {
	labels := map[string]string{}
	for _, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, ":")
		if !ok {
			return fmt.Errorf("%q must be key:value", pair)
		}
		key = strings.TrimSpace(key)
		if _, dup := labels[key]; dup {
			return fmt.Errorf("key %q is given twice", key)
		}
		labels[key] = strings.TrimSpace(value)
	}
	*m = labels
	return nil
}

const (
	maxLabelPart   = 63
	maxLabelPrefix = 253
)

// labelRule returns the rule of the Kubernetes API for labels that key or value breaks, or nothing.
func labelRule(key, value string) string {
	part := regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$`)
	subdomain := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	name := key
	if prefix, rest, ok := strings.Cut(key, "/"); ok {
		if len(prefix) > maxLabelPrefix || !subdomain.MatchString(prefix) {
			return "the prefix of the key must be a DNS subdomain of at most 253 characters"
		}
		name = rest
	}
	if len(name) > maxLabelPart || !part.MatchString(name) {
		return "the key must be 1 to 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
	}
	if value != "" && (len(value) > maxLabelPart || !part.MatchString(value)) {
		return "the value must be at most 63 letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
