{{/* What the names of all objects begin with: the release's, short enough for the labels that Kubernetes makes of workload names. */}}
{{- define "csi-driver-lib.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of every object. The last two are helm's. */}}
{{- define "csi-driver-lib.labels" -}}
app.kubernetes.io/part-of: {{ include "csi-driver-lib.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Image and pull policy of a container: include "csi-driver-lib.image" (list . NAME). */}}
{{- define "csi-driver-lib.image" -}}
{{- $all := (index . 0).Values.images -}}
{{- $name := index . 1 -}}
{{- $own := get $all $name -}}
{{- $path := compact (list ($own.registry | default $all.registry) ($own.prefix | default $all.prefix) $name) | join "/" -}}
image: {{ printf "%s:%s" ($own.repository | default $path) $own.tag | quote }}
{{- with $all.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{/* Annotations of the driver's pods. */}}
{{- define "csi-driver-lib.podAnnotations" -}}
kubectl.kubernetes.io/default-container: {{ .Values.driver.container }}
{{- include "csi-driver-lib.scrapeAnnotations" . }}
{{- end -}}

{{/* Annotations for a Prometheus. No prometheus.io/port: every port that a container declares is scraped. */}}
{{- define "csi-driver-lib.scrapeAnnotations" -}}
{{- if .Values.monitoring.annotations }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
{{- end }}
{{- end -}}

{{/* What differs between the pods of the sides: include "csi-driver-lib.pod" (list . SIDE), where SIDE is a table of the values with a service account. */}}
{{- define "csi-driver-lib.pod" -}}
{{- $root := index . 0 -}}
{{- $side := index . 1 -}}
{{- $values := get $root.Values $side -}}
serviceAccountName: {{ include "csi-driver-lib.name" $root }}-{{ kebabcase $side }}
{{- if ne $side "snapshotController" }}
automountServiceAccountToken: false # those containers that talk to the API server mount it
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.podSpec }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Spreads the pods of a workload over nodes: include "csi-driver-lib.spread" NAME. */}}
{{- define "csi-driver-lib.spread" -}}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      app.kubernetes.io/name: {{ . }}
{{- end -}}

{{/* Keeps one pod of a workload through drains: include "csi-driver-lib.budget" (list . NAME). */}}
{{- define "csi-driver-lib.budget" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "csi-driver-lib.labels" $root | nindent 4 }}
spec:
  minAvailable: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ $name }}
{{- end -}}

{{/* Security context of a container without any right. */}}
{{- define "csi-driver-lib.unprivileged" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Security context of a container that is root, without its capabilities, for the reason: include "csi-driver-lib.root" REASON. */}}
{{- define "csi-driver-lib.root" -}}
securityContext:
  runAsUser: 0 # {{ . }}
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* The driver's container: include "csi-driver-lib.driver" (list . SIDE). */}}
{{- define "csi-driver-lib.driver" -}}
{{- $root := index . 0 -}}
{{- $side := index . 1 -}}
{{- $values := (get $root.Values $side).driver -}}
- name: {{ $root.Values.driver.container }}
  {{- include "csi-driver-lib.image" (list $root $root.Values.driver.image) | nindent 2 }}
  args:
  {{- with $values.args }}
  {{- toYaml . | nindent 2 }}
  {{- else }}
  - --drivername={{ $root.Values.driver.name }}
  - --mode={{ ternary "all" $side $root.Values.provisionOnNodes }}
  - --endpoint=unix:///csi/csi.sock
  {{- if eq $side "node" }}
  - --nodeid=$(NODE_NAME)
  - --statedir={{ include "csi-driver-lib.stateMount" $root }}
  {{- range $i, $key := keys $root.Values.node.topology | sortAlpha }}
  - --topology={{ $key }}=$(TOPOLOGY_{{ $i }})
  {{- end }}
  {{- end }}
  - --http-endpoint=:9810
  - --v={{ $root.Values.logLevel }}
  {{- end }}
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- if or $values.env (eq $side "node") }}
  env:
  {{- if eq $side "node" }}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- range $i, $key := keys $root.Values.node.topology | sortAlpha }}
  - name: TOPOLOGY_{{ $i }}
    valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ get $root.Values.node.topology $key }}']"}}
  {{- end }}
  {{- end }}
  {{- with $values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
  ports:
  - {name: driver, containerPort: 9810}
  livenessProbe:
    httpGet: {path: /healthz, port: 9808}
    timeoutSeconds: 5
  {{- if eq $side "node" }}
  terminationMessagePath: /termination-log # the usual one would be a file in the host's /dev, and stay there
  securityContext:
    privileged: true # what is mounted here shall be mounted on the host
    readOnlyRootFilesystem: true
  {{- else }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]{{ with $values.addCapabilities }}, add: [{{ join ", " . }}]{{ end }}}
  {{- end }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
  {{- if eq $side "node" }}
  - {name: plugin-dir, mountPath: /csi}
  - {name: kubelet-dir, mountPath: {{ $root.Values.kubeletDir | quote }}, mountPropagation: Bidirectional}
  {{- else }}
  - {name: socket-dir, mountPath: /csi}
  {{- end }}
  {{- if or (eq $side "node") $root.Values.controller.stateDir }}
  - {name: state-dir, mountPath: {{ include "csi-driver-lib.stateMount" $root }}}
  {{- end }}
  {{- if eq $side "node" }}
  - {name: dev-dir, mountPath: /dev}
  {{- end }}
  {{- with $values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The livenessprobe's container: include "csi-driver-lib.livenessprobe" (list . SIDE). */}}
{{- define "csi-driver-lib.livenessprobe" -}}
{{- $root := index . 0 -}}
{{- $side := index . 1 -}}
{{- $values := (get $root.Values $side).livenessprobe -}}
- name: livenessprobe
  {{- include "csi-driver-lib.image" (list $root "livenessprobe") | nindent 2 }}
  args:
  - --csi-address=/csi/csi.sock
  - --http-endpoint=:9808
  - --startup-grace=30s
  {{- with $values.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: livenessprobe, containerPort: 9808}
  {{- if eq $side "node" }}
  {{- include "csi-driver-lib.root" "the socket, in a directory of the host, belongs to root" | nindent 2 }}
  {{- else }}
  {{- include "csi-driver-lib.unprivileged" . | nindent 2 }}
  {{- end }}
  resources: {{- toYaml $values.resources | nindent 4 }}
  volumeMounts:
  - {name: {{ ternary "plugin-dir" "socket-dir" (eq $side "node") }}, mountPath: /csi}
{{- end -}}

{{/* Directory of the driver's socket on the nodes. */}}
{{- define "csi-driver-lib.pluginDir" -}}
{{ .Values.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end -}}

{{/* Directory of the driver's state: on the nodes, and in the driver's containers. */}}
{{- define "csi-driver-lib.stateDir" -}}
{{ .Values.stateDir | default (printf "/var/lib/%s" .Values.driver.name) }}
{{- end -}}
{{- define "csi-driver-lib.stateMount" -}}
{{ .Values.driver.stateMount | default (include "csi-driver-lib.stateDir" .) }}
{{- end -}}

{{/* Token, certificate and namespace for the containers that talk to the API server: the volume, and its mount. */}}
{{- define "csi-driver-lib.apiAccess" -}}
- name: api-access
  projected:
    sources:
    - serviceAccountToken: {path: token, expirationSeconds: 3607}
    - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
    - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end -}}
{{- define "csi-driver-lib.apiMount" -}}
- {name: api-access, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}
