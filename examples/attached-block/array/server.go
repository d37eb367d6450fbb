package array

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
)

func (a *Array) calls() map[string]func(context.Context, Request) (any, error) {
	return map[string]func(context.Context, Request) (any, error){
		"pools":    func(context.Context, Request) (any, error) { return a.pools(), nil },
		"list":     func(_ context.Context, r Request) (any, error) { return a.list(r.Kind, r.Name), nil },
		"get":      func(_ context.Context, r Request) (any, error) { return a.find(r.Ref) },
		"create":   func(_ context.Context, r Request) (any, error) { return a.create(r.LUN) },
		"delete":   func(_ context.Context, r Request) (any, error) { return nil, a.delete(r.Ref) },
		"resize":   func(_ context.Context, r Request) (any, error) { return nil, a.resize(r.Ref, r.Size) },
		"export":   func(ctx context.Context, r Request) (any, error) { return a.export(ctx, r) },
		"unexport": func(ctx context.Context, r Request) (any, error) { return nil, a.unexport(ctx, r) },
	}
}

// ServeHTTP serves one call at a time, POST /NAME with a Request.
func (a *Array) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out, err := a.call(r)
	if err != nil {
		answer, ok := errors.AsType[*Error](err)
		if !ok {
			answer = &Error{Status: http.StatusInternalServerError, Text: err.Error()}
		}
		w.WriteHeader(answer.Status)
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	_ = json.NewEncoder(w).Encode(out) // An error is that the client has gone.
}

func (a *Array) call(r *http.Request) (any, error) {
	name := path.Base(r.URL.Path)
	user, password, _ := r.BasicAuth()
	do := a.calls()[name]
	var in Request
	switch {
	case password == "" || a.Passwords[user] != password:
		return nil, fail(http.StatusUnauthorized, "user %q: no such account, or wrong password", user)
	case do == nil:
		return nil, fail(http.StatusBadRequest, "call %q: does not exist", name)
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		return nil, fail(http.StatusBadRequest, "call %q: %v", name, err)
	}
	return do(r.Context(), in)
}

// missing is the error for a LUN or host that does not exist.
func missing(kind, id string) error {
	return &Error{Status: http.StatusNotFound, Text: fmt.Sprintf("%s: %q does not exist", kind, id), Missing: id}
}

func fail(status int, format string, args ...any) error {
	return &Error{Status: status, Text: fmt.Sprintf(format, args...)}
}
