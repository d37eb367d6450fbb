// Package flagset holds the command line flags that the components have in
// common, as small groups that bind to struct fields.
//
// A component embeds the groups it needs in its Options, sets its own defaults,
// registers the flags on the FlagSet it is given and validates everything at once:
//
//	o := Options{CSI: flagset.NewCSI(), Kube: flagset.NewKube()}
//	o.CSI.Timeout = 10 * time.Second // this component's default
//	o.CSI.AddFlags(fs)
//	o.Kube.AddFlags(fs)
//	...
//	err := flagset.Validate(&o.CSI, &o.Kube)
//
// Names, accepted forms and defaults are those of the Kubernetes CSI helpers
// that are replaced, except that --kube-api-qps is 0 here: client-side throttling
// is off and the server's fairness decides.
//
// The package links neither a Kubernetes client nor a flag library, so drivers
// may use it. Do not use it for flags that only one component has: those belong to
// the component's own Options.
package flagset
