package httpserve

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

const (
	pathHealthz = "/healthz"
	pathLivez   = "/livez"
	pathReadyz  = "/readyz"
	pathLeader  = "/healthz/leader-election"
	pathPprof   = "/debug/pprof"
	pathState   = "/debug/state"
)

// newHandler routes by a table, of which "/" shows the paths.
func newHandler(cfg Config) http.Handler {
	routes := map[string]http.Handler{
		pathLivez:   checks(cfg, pathLivez, cfg.Live),
		pathReadyz:  checks(cfg, pathReadyz, cfg.Ready),
		pathHealthz: checks(cfg, pathHealthz, cfg.Live),
	}
	if cfg.ReadyPath != "" {
		routes[cfg.ReadyPath] = routes[pathReadyz]
	}
	if cfg.Health != nil {
		routes[pathHealthz] = health(cfg, cfg.Health)
	}
	if cfg.Leader != nil {
		routes[pathLeader] = health(cfg, func(context.Context) error { return cfg.Leader() })
	}
	if cfg.Gatherer != nil {
		routes[cfg.MetricsPath] = promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{ErrorLog: errorLog{cfg.Logger}})
	}
	if cfg.State != nil {
		routes[pathState] = state(cfg)
	}
	mux := http.NewServeMux()
	for path, handler := range routes {
		mux.Handle(path, handler)
	}
	paths := slices.Collect(maps.Keys(routes))
	if cfg.Pprof {
		addPprof(mux)
		paths = append(paths, pathPprof+"/")
	}
	mux.Handle("/{$}", index(paths))
	return mux
}

// addPprof serves profiles. The default mux, where the import has put them
// too, is never served.
func addPprof(mux *http.ServeMux) {
	mux.HandleFunc(pathPprof+"/", pprof.Index)
	mux.HandleFunc(pathPprof+"/cmdline", pprof.Cmdline)
	mux.HandleFunc(pathPprof+"/profile", pprof.Profile)
	mux.HandleFunc(pathPprof+"/symbol", pprof.Symbol)
	mux.HandleFunc(pathPprof+"/trace", pprof.Trace)
}

func index(paths []string) http.Handler {
	slices.Sort(paths)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text(w, http.StatusOK, strings.Join(paths, "\n")+"\n")
	})
}

// health answers one check: 200 "ok", or 500 and the reason.
func health(cfg Config, check Check) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := run(r.Context(), cfg, check); err != nil {
			failing(cfg, r.URL.Path, err)
			text(w, http.StatusInternalServerError, err.Error()+"\n")
			return
		}
		text(w, http.StatusOK, "ok")
	})
}

// result is the outcome of one named check.
type result struct {
	name     string
	excluded bool
	err      error
}

// checks answers named checks: 200 "ok" if all pass, else 500 and the list.
func checks(cfg Config, path string, byName map[string]func(context.Context) error) http.Handler {
	names := slices.Sorted(maps.Keys(byName))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		excluded := r.URL.Query()["exclude"]
		results := make([]result, 0, len(names))
		for _, name := range names {
			one := result{name: name, excluded: slices.Contains(excluded, name)}
			if !one.excluded {
				one.err = run(r.Context(), cfg, byName[name])
			}
			results = append(results, one)
		}
		code, body := report(path, results, r.URL.Query().Has("verbose"))
		if code != http.StatusOK {
			failing(cfg, path, fmt.Errorf("%s", strings.TrimSpace(body)))
		}
		text(w, code, body)
	})
}

// report formats the outcome of checks as Kubernetes components do.
func report(path string, results []result, verbose bool) (code int, body string) {
	var list strings.Builder
	code = http.StatusOK
	for _, r := range results {
		switch {
		case r.excluded:
			fmt.Fprintf(&list, "[+]%s excluded: ok\n", r.name)
		case r.err != nil:
			code = http.StatusInternalServerError
			fmt.Fprintf(&list, "[-]%s failed: %v\n", r.name, r.err)
		default:
			fmt.Fprintf(&list, "[+]%s ok\n", r.name)
		}
	}
	name := strings.TrimPrefix(path, "/")
	switch {
	case code != http.StatusOK:
		return code, list.String() + name + " check failed\n"
	case verbose:
		return code, list.String() + name + " check passed\n"
	default:
		return code, "ok"
	}
}

// run runs a check within its time and turns a panic into an error, so that a
// broken check is seen as unhealthy and nothing else.
func run(ctx context.Context, cfg Config, check Check) (err error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.CheckTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("check panicked: %v", p)
		}
	}()
	return check(ctx)
}

func failing(cfg Config, path string, err error) {
	cfg.Logger.V(2).Info("Health check failed", logging.KeyPath, path, logging.KeyReason, err.Error())
}

// state answers what the component is doing, as indented JSON. It names volumes and quotes drivers, and clients are
// not authenticated: other hosts get it only where profiles are served, too. A kubectl port-forward is not another host.
func state(cfg Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !cfg.Pprof && !isLoopback(r.RemoteAddr) {
			text(w, http.StatusForbidden, "served to this host only: use kubectl port-forward, or set --enable-pprof\n")
			return
		}
		out, err := json.MarshalIndent(cfg.State(), "", "  ")
		if err != nil {
			text(w, http.StatusInternalServerError, fmt.Sprintf("encode the state: %v\n", err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		write(w, http.StatusOK, string(out)+"\n")
	})
}

// isLoopback reports whether an address of a client, host:port, is one of this host's own.
func isLoopback(address string) bool {
	client, err := netip.ParseAddrPort(address)
	return err == nil && client.Addr().Unmap().IsLoopback()
}

func text(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	write(w, code, body)
}

// write answers. The only possible error is that the client has disconnected.
func write(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(body))
}

// errorLog hands what the HTTP server and the metrics handler complain about to
// the logger.
type errorLog struct{ log klog.Logger }

// Println logs a complaint of the metrics handler.
func (l errorLog) Println(v ...any) { l.complain(fmt.Sprintln(v...)) }

// Write logs a complaint of the HTTP server.
func (l errorLog) Write(line []byte) (int, error) {
	l.complain(string(line))
	return len(line), nil
}

func (l errorLog) complain(text string) {
	l.log.V(2).Info("HTTP is impaired", logging.KeyReason, strings.TrimSpace(text))
}
