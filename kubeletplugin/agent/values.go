package agent

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/longshore-csi/longshore/csikit/drivername"
)

// Labels is a flag of the form key=value,...
type Labels map[string]string

var _ flag.Value = (*Labels)(nil)

// String returns the labels as a flag value, sorted.
func (l *Labels) String() string {
	all := make([]string, 0, len(*l))
	for _, k := range slices.Sorted(maps.Keys(*l)) {
		all = append(all, k+"="+(*l)[k])
	}
	return strings.Join(all, ",")
}

// Set replaces the labels.
func (l *Labels) Set(list string) error {
	parsed := Labels{}
	for _, pair := range split(list) {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("label %q: must have the form key=value", pair)
		}
		rules := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
		if len(rules) > 0 {
			return fmt.Errorf("label %q: %s", pair, strings.Join(rules, "; "))
		}
		parsed[key] = value
	}
	*l = parsed
	return nil
}

// Sockets is a flag of the form name=socket,... for CSI drivers.
type Sockets map[string]string

var _ flag.Value = (*Sockets)(nil)

// String returns the drivers as a flag value, sorted.
func (s *Sockets) String() string { return (*Labels)(s).String() }

// Set replaces the drivers.
func (s *Sockets) Set(list string) error {
	parsed := Sockets{}
	for _, pair := range split(list) {
		name, socket, ok := strings.Cut(pair, "=")
		if !ok || !filepath.IsAbs(socket) {
			return fmt.Errorf("driver %q: must have the form name=socket with an absolute path", pair)
		}
		if err := drivername.Validate(name); err != nil {
			return err
		}
		parsed[name] = socket
	}
	*s = parsed
	return nil
}

// Taints is a flag of the form key=value:effect,...
type Taints []corev1.Taint

var _ flag.Value = (*Taints)(nil)

// String returns the taints as a flag value.
func (t *Taints) String() string {
	all := make([]string, 0, len(*t))
	for i := range *t {
		all = append(all, (*t)[i].ToString())
	}
	return strings.Join(all, ",")
}

// Set replaces the taints.
func (t *Taints) Set(list string) error {
	var parsed Taints
	for _, text := range split(list) {
		taint, err := parseTaint(text)
		if err != nil {
			return err
		}
		parsed = append(parsed, taint)
	}
	*t = parsed
	return nil
}

func parseTaint(text string) (corev1.Taint, error) {
	pair, effect, ok := strings.Cut(text, ":")
	if !ok {
		return corev1.Taint{}, fmt.Errorf("taint %q: must have the form key=value:effect", text)
	}
	key, value, _ := strings.Cut(pair, "=")
	rules := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
	if len(rules) > 0 {
		return corev1.Taint{}, fmt.Errorf("taint %q: %s", text, strings.Join(rules, "; "))
	}
	switch e := corev1.TaintEffect(effect); e {
	case corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		return corev1.Taint{Key: key, Value: value, Effect: e}, nil
	default:
		return corev1.Taint{}, fmt.Errorf("taint %q: effect must be NoSchedule, PreferNoSchedule or NoExecute", text)
	}
}

// Quantity is a flag with a Kubernetes quantity; the zero value is not set.
type Quantity struct{ value *resource.Quantity }

var _ flag.Value = (*Quantity)(nil)

// String returns the quantity, or nothing.
func (q *Quantity) String() string {
	if q.value == nil {
		return ""
	}
	return q.value.String()
}

// Set parses a quantity; an empty text means not set.
func (q *Quantity) Set(text string) error {
	if text == "" {
		q.value = nil
		return nil
	}
	v, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("quantity %q: %w", text, err)
	}
	if v.Sign() <= 0 {
		return fmt.Errorf("quantity %q: must be greater than 0", text)
	}
	q.value = &v
	return nil
}

// or returns the quantity, or a standard value if it is not set.
func (q *Quantity) or(standard int64) resource.Quantity {
	if q.value != nil {
		return *q.value
	}
	return *resource.NewQuantity(standard, resource.DecimalSI)
}

// Paths is a flag with paths separated by commas.
type Paths []string

var _ flag.Value = (*Paths)(nil)

// String returns the paths as a flag value.
func (p *Paths) String() string { return strings.Join(*p, ",") }

// Set replaces the paths.
func (p *Paths) Set(list string) error {
	*p = split(list)
	return nil
}

func split(list string) []string {
	var all []string
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

func isNodeName(name string) bool { return len(validation.IsDNS1123Subdomain(name)) == 0 }

func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

var errNoAddress = errors.New("this machine has no address")
