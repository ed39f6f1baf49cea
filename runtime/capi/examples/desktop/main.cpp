/* Reads a document once and answers questions about it: a program in Qt 6 Widgets with libkvarn.

   desktop [--model MODEL.gguf] [--answer JSON] [DOCUMENT]

   What was read is kept in a store, a folder named after the document's contents: a program that is
   closed or killed while it reads goes on from there next time. Questions are asked in another
   context, which begins with that store as its pack and changes nothing. */
#include <QtWidgets>
#include <atomic>
#include <functional>
#include <kvarn.h>
#include <vector>

constexpr int ROOM = 4096; // tokens of questions and answers after the document

static QString failed() { return "!" + QString::fromUtf8(kvarn_error()); }

static QString rate(long tokens, const QElapsedTimer &time)
{
    double seconds = double(time.nsecsElapsed()) / 1e9;
    return QString("%1 tokens/s.").arg(double(tokens) / seconds, 0, 'f', 1);
}

template <typename T> QByteArray json(const T &value)
{
    return QJsonDocument(value).toJson(QJsonDocument::Compact);
}

/* What is done with kvarn. Its functions run on one thread, and `stop` on any. */
class Engine : public QObject {
public:
    std::function<void(long done, long total)> onProgress; // of the document's tokens
    std::function<void(const QString &text)> onText;
    std::function<void(const QString &line)> onLog;

    ~Engine() override
    {
        kvarn_on_log(nullptr, nullptr);
        if (model && kvarn_stop() < 0) qWarning("%s", kvarn_error()); // saves and frees everything
    }

    /* Each returns what to tell the user; begins with "!" where it failed. */
    QString load(const QString &path)
    {
        kvarn_on_log(log, this);
        if (kvarn_start(nullptr) < 0) return failed();
        QByteArray file = QFile::encodeName(path);
        model = kvarn_model_open(path.isEmpty() ? nullptr : file.data(), nullptr, nullptr, nullptr);
        return loaded = model ? "Open a document." : failed();
    }

    QString open(const QString &path)
    {
        if (!model) return loaded;
        QFile file(path);
        if (!file.open(QIODevice::ReadOnly))
            return "!" + QDir::toNativeSeparators(path) + ": " + file.errorString();
        QByteArray text = file.readAll();
        auto n = size_t(text.size());
        long needed = kvarn_tokenize(model, text, n, KVARN_BOS, nullptr, 0);
        if (needed < 0) return failed();
        ids.resize(size_t(needed));
        kvarn_tokenize(model, text, n, KVARN_BOS, ids.data(), ids.size());
        ids.pop_back(); // a -1 at the end
        messages = {};
        QCryptographicHash hash(QCryptographicHash::Sha256);
        hash.addData(facts(kvarn_model_info, model)["fingerprint"].toString().toUtf8() + '\n');
        hash.addData(text);
        QString all = QStandardPaths::writableLocation(QStandardPaths::AppDataLocation);
        if (!QDir().mkpath(all)) return "!" + all + ": cannot be made";
        folder = all + "/" + hash.result().toHex().left(32);
        return readOn();
    }

    /* Read what has not been read of the document. */
    QString readOn()
    {
        if (!replace("store")) return failed();
        long held = from = tokens(), all = long(ids.size());
        onProgress(held, all);
        QElapsedTimer time;
        time.start();
        if (held < all && !stops) {
            long done = kvarn_read_ids(context, ids.data() + held, ids.size() - size_t(held),
                                       progress, this);
            if (done < 0 && done != KVARN_CANCELLED) return failed();
        }
        long now = tokens();
        QString speed = now > held ? "; " + rate(now - held, time) : ".";
        onProgress(now, all);
        if (!replace("pack")) return failed();
        QString how = now < all ? QString("Stopped after %1 of %2 tokens").arg(now).arg(all)
                                : QString("Read %1 tokens").arg(all);
        return how + (held ? QString(", %1 of them earlier").arg(held) : "") + speed;
    }

    QString ask(const QString &question, const QByteArray &options)
    {
        messages.append(QJsonObject{{"role", "user"}, {"content", question}});
        answer.clear();
        QElapsedTimer time;
        time.start();
        long made = kvarn_chat(context, json(messages), options, piece, this);
        if (made > 0 || !answer.isEmpty()) // also what there is of an answer that was stopped
            messages.append(QJsonObject{{"role", "assistant"}, {"content", answer}});
        else
            messages.removeLast();
        if (made < 0) return made == KVARN_CANCELLED ? "Stopped." : failed();
        return QString("%1 tokens, ").arg(made - 1) + rate(made - 1, time);
    }

    /* End what runs: it returns soon, with what it has. */
    void stop()
    {
        stops = true;
        if (void *running = context) kvarn_cancel(running);
    }

    std::atomic<bool> stops{false}; // set by `stop`, cleared before the next call

private:
    template <typename F> static QJsonObject facts(F info, void *of)
    {
        QByteArray text(int(std::max(1L, info(of, nullptr, 0))), '\0');
        info(of, text.data(), size_t(text.size()));
        return QJsonDocument::fromJson(text.left(text.size() - 1)).object();
    }

    long tokens() { return long(facts(kvarn_context_info, context)["tokens"].toDouble()); }

    /* Another context of the document's folder, as its "store" or "pack". */
    bool replace(const QString &how)
    {
        if (void *before = context.exchange(nullptr))
            if (kvarn_context_free(before) < 0) return false;
        int room = int(ids.size()) + ROOM;
        context = kvarn_context_new(model, json(QJsonObject{{how, folder}, {"ctx", room}}));
        return context != nullptr;
    }

    static Engine *engineOf(void *user) { return static_cast<Engine *>(user); }

    /* Called by kvarn, which stops where they return other than 0. */
    static int progress(long done, long, void *user)
    {
        Engine *self = engineOf(user);
        self->onProgress(self->from + done, long(self->ids.size()));
        return self->stops;
    }

    static int piece(const char *utf8, size_t n, void *user)
    {
        Engine *self = engineOf(user);
        QString text = QString::fromUtf8(utf8, int(n));
        self->answer += text;
        self->onText(text);
        return self->stops;
    }

    static void log(const char *line, void *user) { engineOf(user)->onLog(line); }

    void *model = nullptr;
    std::atomic<void *> context{nullptr};
    std::vector<int32_t> ids; // of the document
    long from = 0;            // how many of them had been read earlier
    QString loaded, folder, answer;
    QJsonArray messages;
};

class Window : public QWidget {
public:
    Window(const QString &model, const QByteArray &answering) : options(answering)
    {
        resize(760, 520);
        conversation.setReadOnly(true);
        question.setPlaceholderText("A question about the document");
        bar.setFormat("%v of %m tokens");
        status.setWordWrap(true);
        auto row = new QHBoxLayout, asking = new QHBoxLayout;
        auto all = new QVBoxLayout(this);
        for (QPushButton *button : {&openButton, &readButton, &stopButton}) row->addWidget(button);
        row->addWidget(&bar, 1);
        asking->addWidget(&question, 1), asking->addWidget(&askButton);
        all->addLayout(row), all->addWidget(&conversation, 1);
        all->addLayout(asking), all->addWidget(&status);
        new QShortcut(QKeySequence::Open, &openButton, [this] { openButton.click(); });
        new QShortcut(Qt::CTRL | Qt::Key_R, &readButton, [this] { readButton.click(); });
        new QShortcut(Qt::Key_Escape, &stopButton, [this] { stopButton.click(); });
        connect(&openButton, &QPushButton::clicked, this, [this] {
            QString path = QFileDialog::getOpenFileName(this, "Open a document");
            if (!path.isEmpty()) open(path);
        });
        connect(&readButton, &QPushButton::clicked, this,
                [this] { run("Reading…", [this] { return engine->readOn(); }); });
        connect(&stopButton, &QPushButton::clicked, this, [this] { engine->stop(); });
        connect(&askButton, &QPushButton::clicked, &question, &QLineEdit::returnPressed);
        connect(&question, &QLineEdit::returnPressed, this, [this] { ask(); });
        engine->onProgress = [this](long done, long total) {
            later([=] { bar.setMaximum(int(total)), bar.setValue(int(done)); });
        };
        engine->onText = [this](const QString &text) { later([=] { write(text); }); };
        engine->onLog = [this](const QString &line) { later([=] { status.setText(line); }); };
        engine->moveToThread(&thread);
        connect(&thread, &QThread::finished, engine, &QObject::deleteLater);
        thread.start();
        run("Loading the model…", [=] { return engine->load(model); });
    }

    ~Window() override
    {
        engine->stop(), thread.quit(), thread.wait();
    }

    void open(const QString &path)
    {
        QSettings("kvarn", "desktop").setValue("document", QFileInfo(path).absoluteFilePath());
        setWindowTitle(QFileInfo(path).fileName() + " – kvarn");
        conversation.clear(), hasDocument = false;
        run("Reading…", [=] { return engine->open(path); }, true);
    }

private:
    void ask()
    {
        QString text = question.text().trimmed();
        if (text.isEmpty() || running || !hasDocument) return;
        question.clear();
        write((conversation.document()->isEmpty() ? "> " : "\n\n> ") + text + "\n");
        run("Answering…", [=] { return engine->ask(text, options); });
    }

    /* On kvarn's thread, after what it does now; the end is told in the status line. */
    void run(const QString &what, const std::function<QString()> &call, bool opens = false)
    {
        running++, engine->stops = false;
        status.setText(what);
        enable();
        QMetaObject::invokeMethod(engine, [=] {
            QString said = call();
            later([=] {
                bool isFailed = said.startsWith('!');
                running--, hasDocument |= opens && !isFailed;
                if (!running || isFailed) status.setText(said.mid(isFailed));
                status.setStyleSheet(isFailed ? "color: #b00020" : "");
                enable();
                question.setFocus();
            });
        });
    }

    void enable()
    {
        openButton.setEnabled(!running);
        readButton.setEnabled(!running && hasDocument && bar.value() < bar.maximum());
        askButton.setEnabled(!running && hasDocument);
        stopButton.setEnabled(running);
    }

    void write(const QString &text)
    {
        conversation.moveCursor(QTextCursor::End);
        conversation.insertPlainText(text);
        conversation.ensureCursorVisible();
    }

    /* On the window's thread. */
    template <typename F> void later(F f) { QMetaObject::invokeMethod(this, f); }

public: // for those who drive it
    QPushButton openButton{"&Open…"}, readButton{"&Read on"}, stopButton{"&Stop"};
    QPushButton askButton{"&Ask"};
    QProgressBar bar;
    QPlainTextEdit conversation;
    QLineEdit question;
    QLabel status;
    int running = 0; // calls on kvarn's thread
    bool hasDocument = false;

private:
    Engine *engine = new Engine;
    QByteArray options;
    QThread thread;
};

int main(int argc, char **argv)
{
    QApplication app(argc, argv);
    QCoreApplication::setApplicationName("kvarn-desktop");
    QCommandLineParser words;
    words.addOptions({{"model", "A model; without it, the default model.", "file"},
                      {"answer", "Options of answers, as JSON.", "json", "{\"max_tokens\": 256}"}});
    words.addPositionalArgument("document", "Without it, the one before.", "[document]");
    words.process(app);
    Window window(words.value("model"), words.value("answer").toUtf8());
    window.show();
    QString last = QSettings("kvarn", "desktop").value("document").toString();
    QString document = words.positionalArguments().value(0, QFile::exists(last) ? last : "");
    if (!document.isEmpty()) window.open(document);
    return app.exec();
}
