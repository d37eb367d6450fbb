package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
)

// hcloudLocation is where all that the mock of Hetzner's cloud has is.
const hcloudLocation = "fsn1"

// hcloudVolume is a volume as the API of the cloud describes it.
type hcloudVolume struct {
	ID          int64             `json:"id"`
	Name        string            `json:"name"`
	Size        int64             `json:"size"` // in GB
	Server      *int64            `json:"server"`
	Location    map[string]any    `json:"location"`
	Labels      map[string]string `json:"labels"`
	Protection  map[string]bool   `json:"protection"`
	Status      string            `json:"status"`
	LinuxDevice string            `json:"linux_device"`
	Created     string            `json:"created"`
}

// hcloudMock serves the part of the HTTP API of Hetzner's cloud that its CSI driver uses: servers, volumes and actions, which are at work until they
// are looked at. (https://docs.hetzner.cloud/reference/cloud)
type hcloudMock struct {
	url     string
	servers []int64

	mu      sync.Mutex
	last    int64 // ID that was given
	volumes []*hcloudVolume
	actions map[int64]int // how often each was looked at
	// fault says what goes wrong with a request, "" for nothing.
	fault func(method, path string) string
	// faults counts what went wrong, by its name.
	faults map[string]int
	// lost are the names of the volumes whose creation was not answered.
	lost map[string]bool
}

// Faults of a hcloudMock.
const (
	hcloudLost    = "the request is served and its answer is lost"
	hcloudLimited = "rate_limit_exceeded"
	hcloudLocked  = "locked"
	hcloudDown    = "unavailable"
)

// hcloudErrors are the answers to requests that are refused.
var hcloudErrors = map[string]int{
	hcloudLimited: http.StatusTooManyRequests, hcloudLocked: http.StatusLocked, hcloudDown: http.StatusServiceUnavailable,
	"not_found": http.StatusNotFound, "uniqueness_error": http.StatusConflict, "invalid_input": http.StatusUnprocessableEntity,
}

// newHcloudMock starts a mock with servers.
func newHcloudMock(t *testing.T, servers ...int64) *hcloudMock {
	t.Helper()
	m := &hcloudMock{servers: servers, actions: map[int64]int{}, faults: map[string]int{}, lost: map[string]bool{}, fault: func(string, string) string { return "" }}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /servers/{id}", m.getServer)
	mux.HandleFunc("GET /volumes", m.listVolumes)
	mux.HandleFunc("POST /volumes", m.createVolume)
	mux.HandleFunc("GET /volumes/{id}", m.withVolume(func(v *hcloudVolume) any { return map[string]any{"volume": v} }))
	mux.HandleFunc("DELETE /volumes/{id}", m.deleteVolume)
	mux.HandleFunc("POST /volumes/{id}/actions/attach", m.attachVolume)
	mux.HandleFunc("POST /volumes/{id}/actions/detach", m.withVolume(func(v *hcloudVolume) any {
		v.Server = nil
		return map[string]any{"action": m.newAction("detach_volume")}
	}))
	mux.HandleFunc("GET /actions", m.listActions)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(mux, w, r) }))
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

// serve serves a request, unless something goes wrong with it.
func (m *hcloudMock) serve(mux http.Handler, w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fault := m.fault(r.Method, r.URL.Path)
	if fault != "" {
		m.faults[fault]++
	}
	switch fault {
	case "":
		mux.ServeHTTP(w, r)
	case hcloudLost:
		known := len(m.volumes)
		mux.ServeHTTP(httptest.NewRecorder(), r)
		for _, v := range m.volumes[min(known, len(m.volumes)):] {
			m.lost[v.Name] = true
		}
		panic(http.ErrAbortHandler)
	default:
		refuse(w, fault)
	}
}

func reply(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client is gone
}

// refuse answers with an error of the API.
func refuse(w http.ResponseWriter, code string) {
	reply(w, hcloudErrors[code], map[string]any{"error": map[string]any{"code": code, "message": "a mock refuses: " + code}})
}

func location() map[string]any {
	return map[string]any{"id": 1, "name": hcloudLocation, "network_zone": "eu-central"}
}

// newAction returns an action that has begun.
func (m *hcloudMock) newAction(command string) map[string]any {
	m.last++
	m.actions[m.last] = 0
	return action(m.last, command, "running")
}

func action(id int64, command, status string) map[string]any {
	return map[string]any{"id": id, "command": command, "status": status, "progress": 50, "started": "2026-01-01T00:00:00Z", "resources": []any{}}
}

func (m *hcloudMock) getServer(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || !slices.Contains(m.servers, id) {
		refuse(w, "not_found")
		return
	}
	reply(w, http.StatusOK, map[string]any{"server": map[string]any{
		"id": id, "name": fmt.Sprint("server-", id), "status": "running", "location": location(), "datacenter": map[string]any{"id": 1, "name": "dc", "location": location()},
	}})
}

func (m *hcloudMock) listVolumes(w http.ResponseWriter, r *http.Request) {
	found := []*hcloudVolume{}
	for _, v := range m.volumes {
		if name := r.URL.Query().Get("name"); name == "" || name == v.Name {
			found = append(found, v)
		}
	}
	reply(w, http.StatusOK, map[string]any{"volumes": found, "meta": map[string]any{"pagination": map[string]any{"page": 1, "per_page": 50, "last_page": 1, "total_entries": len(found)}}})
}

func (m *hcloudMock) createVolume(w http.ResponseWriter, r *http.Request) {
	v := &hcloudVolume{Location: location(), Protection: map[string]bool{"delete": false}, Status: "available", Created: "2026-01-01T00:00:00Z", Labels: map[string]string{}}
	var asked struct {
		Name, Location string
		Size           int64
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Name == "" || asked.Location != hcloudLocation || asked.Size < 10 {
		refuse(w, "invalid_input")
		return
	}
	if slices.ContainsFunc(m.volumes, func(v *hcloudVolume) bool { return v.Name == asked.Name }) {
		refuse(w, "uniqueness_error")
		return
	}
	m.last++
	v.ID, v.Name, v.Size = m.last, asked.Name, asked.Size
	v.LinuxDevice = fmt.Sprint("/dev/disk/by-id/scsi-0HC_Volume_", v.ID)
	m.volumes = append(m.volumes, v)
	reply(w, http.StatusCreated, map[string]any{"volume": v, "action": m.newAction("create_volume"), "next_actions": []any{}})
}

// withVolume answers about the volume of a request.
func (m *hcloudMock) withVolume(answer func(*hcloudVolume) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		at := m.find(r)
		if at < 0 {
			refuse(w, "not_found")
			return
		}
		reply(w, http.StatusOK, answer(m.volumes[at]))
	}
}

// find returns the index of the volume of a request, -1 if there is none.
func (m *hcloudMock) find(r *http.Request) int {
	return slices.IndexFunc(m.volumes, func(v *hcloudVolume) bool { return strconv.FormatInt(v.ID, 10) == r.PathValue("id") })
}

func (m *hcloudMock) deleteVolume(w http.ResponseWriter, r *http.Request) {
	at := m.find(r)
	switch {
	case at < 0:
		refuse(w, "not_found")
	case m.volumes[at].Server != nil:
		refuse(w, hcloudLocked)
	default:
		m.volumes = slices.Delete(m.volumes, at, at+1)
		w.WriteHeader(http.StatusNoContent)
	}
}

func (m *hcloudMock) attachVolume(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Server int64 }
	at := m.find(r)
	switch err := json.NewDecoder(r.Body).Decode(&asked); {
	case at < 0 || !slices.Contains(m.servers, asked.Server):
		refuse(w, "not_found")
	case err != nil:
		refuse(w, "invalid_input")
	case m.volumes[at].Server != nil:
		refuse(w, hcloudLocked)
	default:
		m.volumes[at].Server = &asked.Server
		reply(w, http.StatusCreated, map[string]any{"action": m.newAction("attach_volume")})
	}
}

// listActions answers that an action is at work when it is looked at for the first time, and done from then on.
func (m *hcloudMock) listActions(w http.ResponseWriter, r *http.Request) {
	found := []any{}
	for _, text := range r.URL.Query()["id"] {
		id, err := strconv.ParseInt(text, 10, 64)
		looks, known := m.actions[id]
		if err != nil || !known {
			continue
		}
		m.actions[id]++
		status := "success"
		if looks == 0 {
			status = "running"
		}
		found = append(found, action(id, "", status))
	}
	reply(w, http.StatusOK, map[string]any{"actions": found})
}

// removeLost removes the volumes that nobody wants and whose creation was not answered, as an admin would: the driver reports INTERNAL for that, which says
// that there is no volume.
func (m *hcloudMock) removeLost(wanted map[string]int64) (removed []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.volumes = slices.DeleteFunc(m.volumes, func(v *hcloudVolume) bool {
		_, want := wanted[v.Name]
		if !want && m.lost[v.Name] {
			removed = append(removed, v.Name)
			return true
		}
		return false
	})
	return removed
}

// state returns the volumes by their names, with the server that each is attached to or 0, and what went wrong how often.
func (m *hcloudMock) state() (volumes map[string]int64, faults map[string]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes, faults = map[string]int64{}, map[string]int{}
	for _, v := range m.volumes {
		volumes[v.Name] = 0
		if v.Server != nil {
			volumes[v.Name] = *v.Server
		}
	}
	for fault, n := range m.faults {
		faults[fault] = n
	}
	return volumes, faults
}
