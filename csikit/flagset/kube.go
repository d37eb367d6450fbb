package flagset

import (
	"errors"
	"flag"
	"math"
)

// Kube says how the Kubernetes API server is reached.
type Kube struct {
	// Kubeconfig is the path of a kubeconfig file. Empty: $KUBECONFIG, else the
	// service account of the pod.
	Kubeconfig string
	// Master overrides the server address of the kubeconfig file.
	Master string
	// QPS limits the requests per second on the client side. 0 (the default) and
	// negative values: no limit, the server's priority and fairness decides.
	QPS float64
	// Burst is how many requests may exceed QPS for a moment.
	Burst int
}

// NewKube returns the defaults: no client-side throttling.
func NewKube() Kube {
	return Kube{Burst: 10}
}

// AddFlags registers --kubeconfig, --master, --kube-api-qps and --kube-api-burst.
func (k *Kube) AddFlags(fs *flag.FlagSet) {
	fs.StringVar(&k.Kubeconfig, "kubeconfig", k.Kubeconfig,
		"`path` of a kubeconfig file; empty: $KUBECONFIG if set, else the service account of the pod")
	fs.StringVar(&k.Master, "master", k.Master, "`URL` of the API server; overrides the URL in the kubeconfig file")
	fs.Float64Var(&k.QPS, "kube-api-qps", k.QPS,
		"maximum number of requests per second to the API server; 0: no limit, the server decides")
	fs.IntVar(&k.Burst, "kube-api-burst", k.Burst, "number of requests that may be sent at once in excess of --kube-api-qps")
}

// Validate reports a rate that is no number and a burst that lets no request pass.
func (k *Kube) Validate() error {
	var errs []error
	if math.IsNaN(k.QPS) || math.IsInf(k.QPS, 0) || k.QPS > math.MaxFloat32 {
		errs = append(errs, invalid("kube-api-qps", k.QPS, "must be a finite number"))
	}
	if k.Burst < 0 {
		errs = append(errs, invalid("kube-api-burst", k.Burst, "must not be negative"))
	}
	if k.QPS > 0 && k.Burst == 0 {
		errs = append(errs, invalid("kube-api-burst", k.Burst, "must be at least 1 when --kube-api-qps is set"))
	}
	return errors.Join(errs...)
}
